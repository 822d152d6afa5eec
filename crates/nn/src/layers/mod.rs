//! The layers that the learned heads ([`crate::tranfs`], [`crate::relabel`]) are made of: functions over slices, each
//! backward pass next to its forward pass.
//!
//! All are generic over [`crate::real::Real`], so gradient checks in `f64` check the code that runs in `f32`. A forward
//! function documents what it keeps for its backward function. `d_x` is the gradient of the loss with respect to x.
//! Gradients of parameters are added to what is there, gradients of activations overwrite it, unless documented
//! otherwise.

pub mod activation;
pub mod attention;
pub mod cosine_margin;
pub mod dropout;
pub mod layer_norm;
pub mod linear;
pub mod loss;
pub mod softmax;
