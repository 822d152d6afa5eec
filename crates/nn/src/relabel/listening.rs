//! The first half of a layer: every item listens to all items.
//!
//! States are normalised; a query and a key an item come from the mean of its states over classes and its state
//! at the class it is filed under; a value a state. What is heard is added to the state.

use super::attention::{Gradients, Inputs, Scratch, Shape, attend, attend_backward};
use super::batch::{Batch, Place, numbers};
use super::parts::{Dense, Norm, Normed, Plan, Product};
use super::pooling::{mean_and_own, mean_and_own_backward};
use crate::isa::Isa;
use crate::layers::residual::add;
use crate::matmul::Write;
use crate::real::Real;

/// Where its parameters lie.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Listening {
    shape: Shape,
    norm: Norm,
    query: Dense,
    key: Product,
    value: Product,
    out: Dense,
}

/// What the way back needs.
pub(super) struct Listened<T> {
    states: Normed<T>,
    pooled: Vec<T>,
    queries: Vec<T>,
    keys: Vec<T>,
    values: Vec<T>,
    heard: Vec<T>,
}
