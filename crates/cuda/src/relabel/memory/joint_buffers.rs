//! The buffers of the gradient of the features ([`DeviceJoint`]). They are needed only if Relabel is trained together
//! with a backbone, which computes the features of a step and continues the backward pass from their gradient.

use bytemuck::{Pod, Zeroable};

use super::NetworkPlan;
use crate::driver::{Buffer, Device};
use crate::error::Result;
use crate::relabel::input::StepSizes;

/// State features that have a gradient (`STATE_GRADIENTS` in `kernels/relabel_feature_gradient.cu`).
const STATE_GRADIENTS: usize = 9;

/// `Joint` in `kernels/relabel.cuh`, which documents the fields: an argument of the kernels, with addresses of buffers
/// (`u64`), offsets of parameters and lengths.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub(in crate::relabel) struct DeviceJoint {
    features: u64,
    d_features: u64,
    space_scales: u64,
    query_scales: u64,
    edge_scales: u64,
    edge_statistics: u64,
    of_losses: u64,
    class_totals: u64,
    d_pair_features: u64,
    d_state_features: u64,
    d_gram: u64,
    d_products: u64,
    d_squares: u64,
    d_query_means: u64,
    d_log_scales: u64,
    d_with_mean: u64,
    d_mean_square: u64,
    view_scales: u64,
    view_offsets: u64,
    row_weights: u64,
    pair_scratch: u64,
    dim: i32,
    state_weights: i32,
    view_weights: i32,
    pair_len: i32,
}

/// The features that a backbone computes, and their gradient.
#[derive(Debug, Clone, Copy)]
pub(in crate::relabel) struct JointAddresses {
    /// `[rows][dim]`
    pub features: u64,
    /// `[rows][dim]`
    pub d_features: u64,
    pub dim: usize,
}

impl DeviceJoint {
    /// Allocates buffers for steps up to `sizes` and adds them to `buffers`. `limit`: bytes of shared memory.
    pub(super) fn new(
        device: &Device,
        plan: &NetworkPlan,
        sizes: &StepSizes,
        addresses: JointAddresses,
        limit: usize,
        buffers: &mut Vec<Buffer<f32>>,
    ) -> Result<Self> {
        let StepSizes { episodes, items, states, pairs, class_rows, queries, products, scratch, .. } = *sizes;
        // Allocates a buffer and returns its address.
        let mut floats = |len: usize| -> Result<u64> {
            buffers.push(device.zeros::<f32>(len)?);
            Ok(buffers[buffers.len() - 1].address())
        };
        // The kernel of the gradients of the pairs works on two vectors `[M]` and four matrices `[M, M]` per episode,
        // in shared memory if they fit.
        let pair_len = 2 * sizes.largest_items + 4 * sizes.largest_items.pow(2);
        let fits = 4 * pair_len <= limit;
        Ok(DeviceJoint {
            features: addresses.features,
            d_features: addresses.d_features,
            space_scales: floats(items)?,
            query_scales: floats(queries)?,
            edge_scales: floats(2 * items)?,
            edge_statistics: floats(4 * episodes)?,
            of_losses: floats(scratch)?,
            class_totals: floats(class_rows)?,
            d_pair_features: floats(3 * pairs)?,
            d_state_features: floats(STATE_GRADIENTS * states)?,
            d_gram: floats(pairs)?,
            d_products: floats(products)?,
            d_squares: floats(queries)?,
            d_query_means: floats(queries)?,
            d_log_scales: floats(items)?,
            d_with_mean: floats(items)?,
            d_mean_square: floats(episodes)?,
            view_scales: floats(items)?,
            view_offsets: floats(items)?,
            row_weights: floats(sizes.row_weights)?,
            pair_scratch: floats(if fits { 0 } else { 4 * pairs })?,
            dim: addresses.dim as i32,
            state_weights: plan.parameters.start("start.features.weight"),
            view_weights: plan.parameters.optional("item.projection.weight"),
            pair_len: if fits { pair_len as i32 } else { 0 },
        })
    }

    /// Floats of shared memory of `relabel_gram_backward`: vectors and matrices of the pairs, or the two vectors alone.
    pub fn pairs_shared_len(&self, sizes: &StepSizes) -> usize {
        (self.pair_len as usize).max(2 * sizes.largest_items)
    }
}
