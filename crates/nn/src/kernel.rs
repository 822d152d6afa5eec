//! Plain loops that are compiled once for every instruction set.
//!
//! Most of a layer is loops over slices that the compiler turns into vector instructions by itself, if only
//! it is told which. `kernel!` writes what that takes: a function whose first argument is the [`crate::Isa`],
//! around a body that is inlined into each set's context. Everything the body calls must be
//! `#[inline(always)]`, and it must hand no vectors through closures: what is not inlined is compiled for
//! the poorest processor.

/// `kernel! { /// What it does. pub fn name<'a, T>(x: &'a [T], y: &'a mut [T]) -> T { .. } }`, with `T: Real`.
macro_rules! kernel {
    (
        $(#[$meta:meta])*
        $visibility:vis fn $name:ident<$life:lifetime, $T:ident>($($argument:ident: $type:ty),* $(,)?)
        $(-> $output:ty)? $body:block
    ) => {
        $(#[$meta])*
        #[allow(clippy::too_many_arguments)]
        $visibility fn $name<$life, $T: $crate::real::Real>(
            isa: $crate::isa::Isa,
            $($argument: $type),*
        ) $(-> $output)? {
            struct Kernel<$life, $T> {
                $($argument: $type,)*
                marker: std::marker::PhantomData<&$life $T>,
            }
            impl<$life, $T: $crate::real::Real> pulp::WithSimd for Kernel<$life, $T> {
                type Output = kernel!(@output $($output)?);

                #[inline(always)]
                fn with_simd<S: pulp::Simd>(self, _: S) -> Self::Output {
                    let Kernel { $($argument,)* marker: _ } = self;
                    $body
                }
            }
            isa.run(Kernel { $($argument,)* marker: std::marker::PhantomData })
        }
    };
    (@output) => { () };
    (@output $output:ty) => { $output };
}

pub(crate) use kernel;
