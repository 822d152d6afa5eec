//! The macro `kernel!`, which compiles a plain loop once for every instruction set.
//!
//! Most of a layer is loops over slices that the compiler vectorises by itself, if it is told which instructions it may
//! use. `kernel!` turns such a loop into a function that runs with [`crate::Isa::current`]: its body is inlined into a
//! context of each instruction set. Everything the body calls must be `#[inline(always)]`, and SIMD values must not be
//! passed to or returned from closures: code that is not inlined is compiled for the baseline CPU target.
//!
//! The function takes exactly one lifetime, for all its slices, and one number type; both must be named even if the
//! body does not need them. Kernels that use vectors explicitly implement `pulp::WithSimd` themselves instead.

/// `kernel! { /// What it does. pub fn name<'a, T>(x: &'a [T], y: &'a mut [T]) -> T { .. } }`, with `T: Real`.
macro_rules! kernel {
    (
        $(#[$meta:meta])*
        $visibility:vis fn $name:ident<$life:lifetime, $T:ident>($($argument:ident: $type:ty),* $(,)?)
        $(-> $output:ty)? $body:block
    ) => {
        $(#[$meta])*
        #[allow(clippy::too_many_arguments)]
        $visibility fn $name<$life, $T: $crate::real::Real>($($argument: $type),*) $(-> $output)? {
            struct Kernel<$life, $T> {
                $($argument: $type,)*
                // Lets the struct have both generics where the arguments do not mention one of them.
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
            $crate::isa::run(Kernel { $($argument,)* marker: std::marker::PhantomData })
        }
    };
    // The return type: `()` where none is written.
    (@output) => { () };
    (@output $output:ty) => { $output };
}

pub(crate) use kernel;
