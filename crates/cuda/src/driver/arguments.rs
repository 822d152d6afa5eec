//! The arguments of kernels ([`Argument`]: buffers, [`Address`], [`Value`], [`Null`]) and the sizes of their launches
//! ([`Grid`]).

use std::marker::PhantomData;

use bytemuck::Pod;

/// The size of a launch: thread blocks, threads per block, and dynamic shared memory per block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grid {
    /// Blocks in x, y and z.
    pub blocks: (u32, u32, u32),
    /// Threads per block.
    pub threads: u32,
    /// Bytes of dynamic shared memory per block.
    pub shared: u32,
}

impl Grid {
    /// A grid of `blocks` blocks in a row, without dynamic shared memory.
    pub fn new(blocks: usize, threads: u32) -> Self {
        Grid { blocks: (blocks as u32, 1, 1), threads, shared: 0 }
    }

    /// The same grid, `count` times in y: for example once per image or episode.
    #[must_use]
    pub fn rows(self, count: usize) -> Self {
        Grid { blocks: (self.blocks.0, count as u32, self.blocks.2), ..self }
    }

    /// The same grid, `count` times in z: once per task of MAML.
    #[must_use]
    pub fn tasks(self, count: usize) -> Self {
        Grid { blocks: (self.blocks.0, self.blocks.1, count as u32), ..self }
    }

    /// The same grid with `bytes` bytes of dynamic shared memory per block.
    #[must_use]
    pub fn shared(self, bytes: usize) -> Self {
        Grid { shared: bytes as u32, ..self }
    }
}

/// The address of an element of a [`Buffer`](super::Buffer) on the device, as an argument of a kernel: the kernel gets
/// a pointer to `T`. It does not keep the buffer alive.
#[derive(Debug, Clone, Copy)]
pub struct Address<T> {
    address: u64,
    element: PhantomData<T>,
}

impl<T> Address<T> {
    /// The address `bytes` bytes after this one, of values of another type.
    pub(crate) fn offset<U>(self, bytes: usize) -> Address<U> {
        Address { address: self.address + bytes as u64, element: PhantomData }
    }

    /// An address inside a larger allocation, which must outlive its use.
    pub(crate) fn new(address: u64) -> Self {
        Address { address, element: PhantomData }
    }

    /// The address, for structures that are passed to kernels.
    pub(crate) fn address(&self) -> u64 {
        self.address
    }

    /// The address of the element `count` elements later.
    pub(crate) fn plus(&self, count: usize) -> Self {
        Address::new(self.address + (count * size_of::<T>()) as u64)
    }
}

/// An argument of a kernel: a buffer or a plain value.
pub trait Argument {
    /// The bytes of the argument as the kernel receives them.
    fn bytes(&self) -> &[u8];
}

impl<T> Argument for Address<T> {
    fn bytes(&self) -> &[u8] {
        bytemuck::bytes_of(&self.address)
    }
}

/// A pointer that is zero.
pub struct Null;

impl Argument for Null {
    fn bytes(&self) -> &[u8] {
        &[0; 8]
    }
}

/// A plain value or structure as an argument of a kernel, which takes it by value.
pub struct Value<T: Pod>(pub T);

impl<T: Pod> Argument for Value<T> {
    fn bytes(&self) -> &[u8] {
        bytemuck::bytes_of(&self.0)
    }
}
