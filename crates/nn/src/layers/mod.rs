//! What the learned heads are made of: functions over slices, each backward pass beside its forward pass.
//!
//! All are written once for `f32` and `f64`. A forward function says what it keeps for its backward one;
//! gradients of parameters are added to what is there, gradients of activations are set unless said otherwise.

pub mod activation;
pub mod attention;
pub mod cosine_margin;
pub mod dropout;
pub mod linear;
pub mod loss;
pub mod norm;
pub mod softmax;
