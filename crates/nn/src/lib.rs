//! The numerical part of trueshot, on the CPU: neural networks for few-shot learning, the layers and kernels they are
//! made of, and their optimiser.
//!
//! Terms used everywhere: an *episode* is a small classification problem, made of a *support set* (a few items per
//! class with given labels, some of them possibly wrong) and of *queries* to classify. A *backbone* turns an image into
//! a vector, its *embedding*. A *head* turns the embeddings of a support set into a classifier.
//!
//! - Backbones: [`conv4`] (inference, training, Hessian-vector products) and [`efficientnet`] (inference).
//! - Heads on embeddings: [`tranfs`] and [`relabel`], both a [`head::Head`]. [`maml`] classifies images without a head.
//! - Training: [`adamw`], [`schedule`], [`parameters`], [`initialisation`].
//! - Kernels: [`matmul`], [`products`] (inner products of rows), [`layers`], [`softmax_regression`].
//! - Support: [`isa`] (instruction sets), [`real`] (the trait of f32 and f64), [`memory`] (prefetch and f16), [`peak`]
//!   (the largest rate of arithmetic operations).
//!
//! Start with the module of a network; its first paragraph names the types to use.
//!
//! All functions take slices. There is no file access, and all work runs on the calling thread, except training of
//! Conv4, which uses the rayon pool it is called in. Every optimised kernel has a simple version next to it, with
//! which its tests compare it. Kernels run with the instruction set of [`Isa::current`].

pub mod adamw;
mod buffer;
pub mod conv4;
pub mod efficientnet;
#[cfg(test)]
mod gradient_check;
pub mod head;
pub mod initialisation;
pub mod isa;
mod kernel;
pub mod layers;
pub mod maml;
pub mod matmul;
pub mod memory;
pub mod parameters;
pub mod peak;
pub mod products;
pub mod real;
pub mod relabel;
pub mod schedule;
pub mod softmax_regression;
pub mod tranfs;

pub use isa::Isa;
