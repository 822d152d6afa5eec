//! Recycled memory ([`Buffer`]): a dropped buffer is kept by its thread for a later [`Buffer::new`].
//!
//! A training step needs a few hundred buffers of some hundred kilobytes, the same ones every time. Allocated anew they
//! would cost more than the arithmetic done in them, because the system maps and clears every page.

use std::any::Any;
use std::cell::RefCell;
use std::ops::{Deref, DerefMut};

use crate::real::Real;

/// The most bytes that a thread keeps per number type; what exceeds it is freed.
const MAX_KEPT_BYTES: usize = 64 << 20;

thread_local! {
    /// One `Vec<Vec<T>>` per number type T.
    static KEPT: RefCell<Vec<Box<dyn Any>>> = const { RefCell::new(Vec::new()) };
}

/// A slice of numbers in recycled memory.
#[derive(Debug)]
pub(crate) struct Buffer<T: Real>(Vec<T>);

impl<T: Real> Buffer<T> {
    /// A buffer of `len` numbers with arbitrary contents.
    pub(crate) fn new(len: usize) -> Self {
        // The smallest of the kept buffers that are large enough.
        let mut numbers = with_kept(|kept| {
            let large_enough = kept.iter().enumerate().filter(|(_, numbers)| numbers.capacity() >= len);
            let smallest = large_enough.min_by_key(|(_, numbers)| numbers.capacity());
            smallest.map(|(index, _)| index).map(|index| kept.swap_remove(index))
        })
        .unwrap_or_else(|| vec![T::ZERO; capacity_for::<T>(len)]);
        numbers.resize(len, T::ZERO);
        // In tests, code that reads a buffer before it writes to it gets NaN.
        #[cfg(test)]
        numbers.fill(T::from_f64(f64::NAN));
        Buffer(numbers)
    }
}

/// The capacity to allocate for `len` numbers: a power of two, since the next step may need a few more. Buffers of 4
/// MiB and more get exactly what they need: rounded up, a few of them would exceed [`MAX_KEPT_BYTES`].
fn capacity_for<T>(len: usize) -> usize {
    if len * size_of::<T>() < MAX_KEPT_BYTES / 16 { len.next_power_of_two() } else { len }
}

/// Runs `run` with the buffers of this number type that the thread keeps.
fn with_kept<T: Real, R>(run: impl FnOnce(&mut Vec<Vec<T>>) -> R) -> R {
    KEPT.with_borrow_mut(|types| {
        let index = types.iter().position(|kept| kept.is::<Vec<Vec<T>>>()).unwrap_or_else(|| {
            types.push(Box::new(Vec::<Vec<T>>::new()));
            types.len() - 1
        });
        run(types[index].downcast_mut().expect("the entry of this type was just looked up"))
    })
}

impl<T: Real> Drop for Buffer<T> {
    fn drop(&mut self) {
        let numbers = std::mem::take(&mut self.0);
        with_kept(|kept: &mut Vec<Vec<T>>| {
            let kept_numbers: usize = kept.iter().map(Vec::capacity).sum();
            if (kept_numbers + numbers.capacity()) * size_of::<T>() <= MAX_KEPT_BYTES {
                kept.push(numbers);
            }
        });
    }
}

impl<T: Real> Deref for Buffer<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.0
    }
}

impl<T: Real> DerefMut for Buffer<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.0
    }
}

#[cfg(test)]
mod tests {
    use super::Buffer;

    #[test]
    fn the_memory_of_a_dropped_buffer_is_used_again() {
        let first = Buffer::<f32>::new(1000);
        let address = first.as_ptr();
        drop(first);
        let of_another_type = Buffer::<f64>::new(100);
        let second = Buffer::<f32>::new(900);
        assert_eq!((second.as_ptr(), second.len(), of_another_type.len()), (address, 900, 100));
        let third = Buffer::<f32>::new(900);
        assert_ne!(third.as_ptr(), address);
    }
}
