//! The parameters of a model: named tensors, stored one after the other in a flat buffer. [`ParameterLayout`] says
//! which part of the buffer is which tensor; the numbers themselves are a `Vec<f32>` that the caller owns.
//!
//! The optimiser, a checkpoint and the sum of gradients see the flat buffer; a layer sees the ranges it was given when
//! the model was built; a model file sees names and shapes.

use std::ops::Range;

/// What happens to a tensor in training.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// The optimiser updates it.
    Trained,
    /// The optimiser treats it as constant. It keeps its initial values, or the model itself changes it (running
    /// statistics).
    Constant,
}

/// One named tensor of a [`ParameterLayout`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tensor {
    /// For example `layer1.attention.out.weight`.
    pub name: String,
    /// The length of each dimension. The elements are stored in row-major order.
    pub shape: Vec<usize>,
    /// The elements of the flat buffer that hold the tensor.
    pub range: Range<usize>,
    /// Whether the optimiser updates it.
    pub role: Role,
}

/// Names, shapes and positions of all tensors of a model.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ParameterLayout {
    tensors: Vec<Tensor>,
}

impl ParameterLayout {
    /// Appends a tensor and returns its range in the flat buffer.
    pub fn add(&mut self, name: impl Into<String>, shape: &[usize], role: Role) -> Range<usize> {
        let start = self.len();
        let range = start..start + shape.iter().product::<usize>();
        self.tensors.push(Tensor { name: name.into(), shape: shape.to_vec(), range: range.clone(), role });
        range
    }

    /// The length of the flat buffer.
    pub fn len(&self) -> usize {
        self.tensors.last().map_or(0, |tensor| tensor.range.end)
    }

    /// Whether there are no tensors.
    pub fn is_empty(&self) -> bool {
        self.tensors.is_empty()
    }

    /// All tensors, in the order of the flat buffer.
    pub fn tensors(&self) -> &[Tensor] {
        &self.tensors
    }

    /// The number of parameters that the optimiser updates.
    pub fn trained(&self) -> usize {
        self.tensors
            .iter()
            .filter(|tensor| tensor.role == Role::Trained)
            .map(|tensor| tensor.range.len())
            .sum()
    }
}
