//! A model's parameters: named tensors that lie one behind the other in a flat buffer.
//!
//! The optimiser, a checkpoint and the sum of gradients see the flat buffer; a layer sees the ranges it was
//! given when the model was laid out; a file sees names and shapes.

use std::ops::Range;

/// What becomes of a tensor in training.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// The optimiser changes it.
    Trained,
    /// It stays as it was drawn, or is kept by the model itself (running statistics).
    Constant,
}

/// One named tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tensor {
    /// For instance `layer1.attention.out.weight`.
    pub name: String,
    /// Row-major.
    pub shape: Vec<usize>,
    /// Where it lies in the flat buffer.
    pub range: Range<usize>,
    /// Whether the optimiser changes it.
    pub role: Role,
}

/// Where every tensor of a model lies.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Layout {
    tensors: Vec<Tensor>,
}

impl Layout {
    /// Puts a tensor behind those there are, and says where.
    pub fn add(&mut self, name: impl Into<String>, shape: &[usize], role: Role) -> Range<usize> {
        let start = self.len();
        let range = start..start + shape.iter().product::<usize>();
        self.tensors.push(Tensor { name: name.into(), shape: shape.to_vec(), range: range.clone(), role });
        range
    }

    /// Numbers in the flat buffer.
    pub fn len(&self) -> usize {
        self.tensors.last().map_or(0, |tensor| tensor.range.end)
    }

    /// Whether there is no tensor.
    pub fn is_empty(&self) -> bool {
        self.tensors.is_empty()
    }

    /// All tensors in order.
    pub fn tensors(&self) -> &[Tensor] {
        &self.tensors
    }

    /// Numbers the optimiser changes.
    pub fn trained(&self) -> usize {
        self.tensors
            .iter()
            .filter(|tensor| tensor.role == Role::Trained)
            .map(|tensor| tensor.range.len())
            .sum()
    }
}
