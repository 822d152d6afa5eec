//! The backward pass of MAML through the steps of the adaptation ([`Group::propagate`]): Hessian-vector products of the
//! support sets' losses (`kernels/tangent.cu`).
//!
//! A step of the adaptation changes the parameters θ to `θ₁ = θ - rate g(θ)`, with g the gradient of the support set's
//! loss. A gradient v with respect to θ₁ becomes `v - rate H v` with respect to θ, where H is the derivative of g. H v
//! is the tangent of g along the direction v: the derivative of everything that the support set's forward and backward
//! pass computes, if the parameters move along v. A prime marks a tangent in formulas. That of a convolution of y with
//! the filters w is a sum of two terms, `(y * w)' = y' * w + y * w'`.
//!
//! In code, `pass` holds the values of a step of the adaptation, and `tangent` their tangents, in memory of the same
//! layout ([`PassMemory`]): `tangent.weights` is the direction. `t_` marks single tangents. As in the rest of the
//! module, z is the output of a convolution, y that of a block, and `d` a gradient of the loss. Block 1 has fields of
//! its own. `index` counts the other blocks, from 0 for block 2 to 2 for block 4; functions that know all four blocks
//! take `index + 1`.
//!
//! The structures with `repr(C)` are arguments of kernels, with the fields of the structures of the same name in
//! `kernels/tangent.cu`. They hold addresses. Unless stated otherwise, a pair is a value and its tangent.

use bytemuck::{Pod, Zeroable};
use trueshot_nn::conv4::{BLOCKS, WIDTH};

use super::memory::PassMemory;
use super::pass::{Convolution, ConvolutionKind, Group, PackedFilters, SumPlanes};
use crate::Divider;
use crate::conv4::FILTER_LEN;
use crate::conv4::network::{FirstShape, PoolShape, pool_grid};
use crate::driver::{Argument, Grid, Queue, Value};
use crate::error::Result;

/// Statistics, norm and filters of block 1, or their tangents (`FirstNorm`).
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
struct FirstNorm {
    /// `[4][64]`: scale, shift, mean and 1 / standard deviation of each channel.
    norm: u64,
    /// `[64][48]`: the filters multiplied by the second moments of the patches.
    weighted: u64,
    /// `[64][48]`: the filters in f32, one row per output channel.
    weights: u64,
    /// The filters w in f16, packed in the order of matrix instructions, without the scale of batch norm, which the
    /// kernel applies to z. In the tangent, scale' w + scale w'.
    filters: u64,
}

impl FirstNorm {
    fn new(pass: &PassMemory) -> Self {
        FirstNorm {
            norm: pass.activations.norm.address(),
            weighted: pass.activations.weighted.address(),
            weights: pass.weights.first_weights.address(),
            filters: pass.weights.first_filters.address(),
        }
    }
}

/// The planes that the tangent of batch norm reads (`NormTangentPlanes`).
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
struct NormTangentPlanes {
    /// Planes of the height and width of the block's input.
    z: [u64; 2],
    /// Planes of half that height and width. Only the backward pass reads them.
    dy: [u64; 2],
}

/// The sums and parameters that the tangent of batch norm reads (`NormTangentSums`). Sums are `[2][64]` in fixed point,
/// with x the normalised z.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
struct NormTangentSums {
    /// The sums of z and z², and those of z' and z z', from which the tangents of mean and variance follow.
    sums: [u64; 2],
    /// The sums of dy and dy x, and those of their tangents dy' and (dy x)'. Only the backward pass reads them.
    d_sums: [u64; 2],
    /// Gamma and beta, a pair of values.
    gamma_and_beta: [u64; 2],
    /// The tangents of gamma and beta.
    t_gamma_and_beta: [u64; 2],
}

/// What the classifier reads and writes, or its tangents (`ClassifierPlanes`).
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
struct ClassifierPlanes {
    /// The output of block 4, a plane.
    features: u64,
    /// All parameters of the task; those of the classifier come last. In the tangent, the direction.
    parameters: u64,
    /// `[images][ways]`
    d_logits: u64,
    /// A plane.
    d_features: u64,
}

impl ClassifierPlanes {
    fn new(pass: &PassMemory) -> Self {
        let last = &pass.activations.blocks[2];
        ClassifierPlanes {
            features: last.y.address(),
            parameters: pass.weights.parameters.address(),
            d_logits: pass.activations.d_logits.address(),
            d_features: last.dy.address(),
        }
    }
}

/// Bytes of shared memory of `first_forward_tangent` (`FIRST_TANGENT_SHARED` in `kernels/tangent.cu`): the filters of
/// block 1 and their tangents (each 3 rows of 8 groups of 8 channels, with 8 bytes for each of 32 lanes), then the
/// scale, the shift and the tangent of the shift of each channel in f32.
const FIRST_TANGENT_SHARED: usize = 2 * 3 * 8 * 32 * 8 + 3 * WIDTH * 4;

impl Group<'_> {
    /// Starts the kernels that replace the gradient v with respect to the parameters after step `step` by v - rate * H
    /// v, the gradient with respect to those before it.
    pub fn propagate(&self, step: usize, rate: f32) -> Result<()> {
        let (pass, tangent) = (&self.memory.steps[step], &self.memory.tangents[step]);
        // The direction is v times a factor that depends on its largest absolute value, so that the tangents, which are
        // 16-bit floats, are about as large as the values they belong to. `propagate_gradients` divides by this factor,
        // and stores the largest absolute value of the new v for the next call.
        let steps_back = self.memory.steps.len() - 1 - step;
        let maximum = self.memory.maxima.plus(steps_back);
        let next_maximum = self.memory.maxima.plus(steps_back + 1);
        let arguments: [&dyn Argument; 5] = [
            &self.memory.gradients,
            &maximum,
            &tangent.weights.parameters,
            &Value(PackedFilters::new(&tangent.weights)),
            &Value(self.shape(pass)),
        ];
        self.launch(Queue::Main, "pack_direction", self.element_grid(), &arguments)?;
        self.direction_convolutions(pass, tangent)?;
        self.forward_tangent(pass, tangent)?;
        // Shared memory: the partial sums of 8 warps and the tangents of the logits, per class.
        let grid = Grid::new(pass.images.count, 256).shared(9 * self.size.ways * size_of::<f32>());
        let arguments: [&dyn Argument; 5] = [
            &Value(ClassifierPlanes::new(pass)),
            &Value(ClassifierPlanes::new(tangent)),
            self.labels,
            self.state,
            &Value(self.shape(pass)),
        ];
        self.launch(Queue::Main, "classify_tangent", grid, &arguments)?;
        self.backward_tangent(pass, tangent)?;
        let arguments: [&dyn Argument; 8] = [
            &Value(self.gradients(pass)),
            &Value(self.gradients(tangent)),
            &self.memory.gradients,
            &maximum,
            &next_maximum,
            &Value(rate),
            self.state,
            &Value(self.shape(pass)),
        ];
        self.launch(Queue::Main, "propagate_gradients", self.element_grid(), &arguments)
    }

    /// Starts the terms that are convolutions with the direction's filters w': `y * w'` in the forward pass, and dz
    /// convolved with w' in the backward pass. They need the pass but no tangent, so all of them start now, on the side
    /// queue; [`forward_tangent`](Group::forward_tangent) and [`backward_tangent`](Group::backward_tangent) add the
    /// other terms.
    fn direction_convolutions(&self, pass: &PassMemory, tangent: &PassMemory) -> Result<()> {
        let (activations, tangents) = (&pass.activations, &tangent.activations);
        self.device.fork()?;
        for index in 0..3_usize {
            let previous = index.checked_sub(1);
            let input = previous.map_or(activations.y1, |previous| activations.blocks[previous].y);
            let d_input = previous.map_or(tangents.dy1, |previous| tangents.blocks[previous].dy);
            let weights = &tangent.weights;
            let terms = [
                (input, weights.filters, tangents.blocks[index].z),
                (activations.blocks[index].dz, weights.transposed, d_input),
            ];
            for (input, filters, output) in terms {
                let convolution = Convolution {
                    kind: ConvolutionKind::Plain,
                    input,
                    filters: filters.plus(index * FILTER_LEN),
                    output,
                    sums: None,
                    planes: SumPlanes::default(),
                };
                let side = self.size.shape.side(index + 1);
                self.convolve(Queue::Side, pass.images.count, side, &convolution)?;
            }
        }
        Ok(())
    }

    /// The sums and parameters of the batch norm of block 2 (index 0) to 4 (2).
    fn norm_sums(&self, pass: &PassMemory, tangent: &PassMemory, index: usize) -> NormTangentSums {
        // Where the two sums of the block start.
        let start = index * 2 * WIDTH;
        let value_and_tangent = |address: &dyn Fn(&PassMemory) -> u64| [address(pass), address(tangent)];
        let parameters = |memory: &PassMemory| {
            let (gamma, beta) = self.norm_parameters(memory.weights.parameters, index + 1);
            [gamma.address(), beta.address()]
        };
        NormTangentSums {
            sums: value_and_tangent(&|memory| memory.sums.forward.plus(start).address()),
            d_sums: value_and_tangent(&|memory| memory.sums.backward.plus(start).address()),
            gamma_and_beta: parameters(pass),
            t_gamma_and_beta: parameters(tangent),
        }
    }

    /// The planes of the batch norm of block 2 (index 0) to 4 (2).
    fn norm_planes(pass: &PassMemory, tangent: &PassMemory, index: usize) -> NormTangentPlanes {
        let (block, t_block) = (&pass.activations.blocks[index], &tangent.activations.blocks[index]);
        NormTangentPlanes {
            z: [block.z.address(), t_block.z.address()],
            dy: [block.dy.address(), t_block.dy.address()],
        }
    }

    /// Starts the tangent of the forward pass, which begins with the tangent of block 1.
    fn forward_tangent(&self, pass: &PassMemory, tangent: &PassMemory) -> Result<()> {
        let (shape, count) = (self.size.shape, pass.images.count);
        let (gamma, _) = self.norm_parameters(pass.weights.parameters, 0);
        let (t_gamma, t_beta) = self.norm_parameters(tangent.weights.parameters, 0);
        let (first, t_first) = (Value(FirstNorm::new(pass)), Value(FirstNorm::new(tangent)));
        let pixels = Value((count * shape.size * shape.size) as f32);
        let arguments: [&dyn Argument; 7] =
            [&pass.images.moments, &first, &t_first, &gamma, &t_gamma, &t_beta, &pixels];
        self.launch(Queue::Main, "first_tangent_statistics", Grid::new(1, 1024), &arguments)?;
        // Two thread blocks of this kernel fit on a multiprocessor (its launch bounds).
        let grid = Grid::new(self.blocks_per_task(2 * self.device.multiprocessors()), 256)
            .shared(FIRST_TANGENT_SHARED);
        let windows = Value(FirstShape::new(count, shape.size, shape.size / 2));
        let arguments: [&dyn Argument; 5] =
            [&pass.images.plane, &first, &t_first, &tangent.activations.y1, &windows];
        self.launch(Queue::Main, "first_forward_tangent", grid, &arguments)?;
        // From here on, convolutions add to the terms that the side queue has computed.
        self.device.join()?;
        let mut input = tangent.activations.y1;
        for (index, block) in tangent.activations.blocks.iter().enumerate() {
            let side = shape.side(index + 1);
            let convolution = Convolution {
                kind: ConvolutionKind::AddedForward,
                input,
                filters: pass.weights.filters.plus(index * FILTER_LEN),
                output: block.z,
                sums: Some(tangent.sums.forward.plus(index * 2 * WIDTH)),
                planes: SumPlanes {
                    first: pass.activations.blocks[index].z.address(),
                    ..SumPlanes::default()
                },
            };
            self.convolve(Queue::Main, count, side, &convolution)?;
            let pool = PoolShape::new(count, side, side / 2);
            let arguments: [&dyn Argument; 5] = [
                &Value(Self::norm_planes(pass, tangent, index)),
                &Value(self.norm_sums(pass, tangent, index)),
                &block.y,
                &block.normalised,
                &Value(pool),
            ];
            self.launch(Queue::Main, "pool_tangent", pool_grid(pool).rows(count), &arguments)?;
            input = block.y;
        }
        Ok(())
    }

    /// Starts the tangent of the backward pass, from the tangent of the gradient of the features.
    fn backward_tangent(&self, pass: &PassMemory, tangent: &PassMemory) -> Result<()> {
        let (shape, count) = (self.size.shape, pass.images.count);
        let side = shape.side(BLOCKS);
        let (last, t_last) = (&pass.activations.blocks[2], &tangent.activations.blocks[2]);
        let arguments: [&dyn Argument; 8] = [
            &last.normalised,
            &t_last.normalised,
            &last.dy,
            &t_last.dy,
            // The two sums of block 4, as in `norm_sums`.
            &tangent.sums.backward.plus(2 * 2 * WIDTH),
            &Value(count as i32),
            &Value(side as i32),
            &Value(Divider::new(side)),
        ];
        let grid = Grid::new(self.feature_blocks(count), 256);
        self.launch(Queue::Main, "sum_feature_tangents", grid, &arguments)?;
        for index in (0..3).rev() {
            self.block_backward_tangent(pass, tangent, index)?;
        }
        // Which pixels are maxima and active follows from the pass itself, so its kernel also sums the tangents: dy'
        // times the patches, which are constant.
        self.first_backward(pass, tangent.activations.dy1, tangent.sums.d_patches)?;
        self.device.join()
    }

    /// Starts the backward pass of the tangents of block 2 (index 0) to 4 (2).
    fn block_backward_tangent(&self, pass: &PassMemory, tangent: &PassMemory, index: usize) -> Result<()> {
        let (count, side) = (pass.images.count, self.size.shape.side(index + 1));
        let (activations, tangents) = (&pass.activations, &tangent.activations);
        let (block, t_block) = (&activations.blocks[index], &tangents.blocks[index]);
        // Rounded up: if the side is odd, the last row and column are in no window of the maximum pooling, but the
        // batch norm before it has gradients there.
        let pool = PoolShape::new(count, side, side.div_ceil(2));
        let arguments: [&dyn Argument; 4] = [
            &Value(Self::norm_planes(pass, tangent, index)),
            &Value(self.norm_sums(pass, tangent, index)),
            &t_block.dz,
            &Value(pool),
        ];
        let grid = pool_grid(pool).rows(count);
        self.launch(Queue::Main, "batch_norm_backward_tangent", grid, &arguments)?;
        self.device.fork()?;
        let previous = index.checked_sub(1);
        // The input x of the block's convolution, and its tangent. The gradient of the filters is x * dz, so its
        // tangent is x' * dz + x * dz'.
        let (x, t_x) = previous.map_or((activations.y1, tangents.y1), |previous| {
            (activations.blocks[previous].y, tangents.blocks[previous].y)
        });
        self.filter_gradient(count, index, [t_x, block.dz], Some([x, t_block.dz]))?;
        let planes = previous.map_or(SumPlanes::default(), |previous| SumPlanes {
            first: activations.blocks[previous].normalised.address(),
            tangent: tangents.blocks[previous].normalised.address(),
            d: activations.blocks[previous].dy.address(),
        });
        let convolution = Convolution {
            kind: if index == 0 { ConvolutionKind::Added } else { ConvolutionKind::AddedBackward },
            input: t_block.dz,
            filters: pass.weights.transposed.plus(index * FILTER_LEN),
            output: previous.map_or(tangents.dy1, |previous| tangents.blocks[previous].dy),
            sums: previous.map(|previous| tangent.sums.backward.plus(previous * 2 * WIDTH)),
            planes,
        };
        self.convolve(Queue::Main, count, side, &convolution)
    }
}
