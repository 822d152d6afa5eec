//! Getting rows into the processor: asking for them early, and widening half precision.

use crate::isa::Isa;

const LINE: usize = 64;

/// Asks for some memory without waiting for it: rows of an episode lie far apart, and the processor's own
/// prefetching starts anew at each of them.
#[inline(always)]
pub fn prefetch(bytes: &[u8]) {
    for line in bytes.chunks(LINE) {
        prefetch_line(line.as_ptr());
    }
}

/// Asks for the cache line that an address lies in.
#[inline(always)]
pub(crate) fn prefetch_line(address: *const u8) {
    // SAFETY: a prefetch is a hint: it reads nothing and never faults, whatever the address.
    #[cfg(target_arch = "x86_64")]
    #[allow(unsafe_code)]
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T1>(address.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

/// Turns half-precision numbers, given by their bits, into single precision. Returns `false`, having done
/// nothing, where the instruction set has no way of its own to do it.
///
/// # Panics
/// If the lengths differ.
pub fn widen_f16(isa: Isa, from: &[u16], to: &mut [f32]) -> bool {
    assert_eq!(from.len(), to.len());
    #[cfg(target_arch = "x86_64")]
    if isa == Isa::Avx512 && isa.is_usable() {
        // SAFETY: the instruction set was just found to be there.
        #[allow(unsafe_code)]
        unsafe {
            widen_f16_avx512(from, to);
        }
        return true;
    }
    let _ = isa;
    false
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
fn widen_f16_avx512(from: &[u16], to: &mut [f32]) {
    use std::arch::x86_64::{_mm256_loadu_si256, _mm512_cvtph_ps, _mm512_storeu_ps};
    const LANES: usize = 16;
    let (whole, rest) = from.as_chunks::<LANES>();
    let (to_whole, to_rest) = to.as_chunks_mut::<LANES>();
    for (from, to) in whole.iter().zip(to_whole) {
        // SAFETY: both pointers are those of arrays of 16 numbers, and neither access needs alignment.
        #[allow(unsafe_code)]
        unsafe {
            _mm512_storeu_ps(to.as_mut_ptr(), _mm512_cvtph_ps(_mm256_loadu_si256(from.as_ptr().cast())));
        }
    }
    if !rest.is_empty() {
        let (mut padded, mut widened) = ([0; LANES], [0.0; LANES]);
        padded[..rest.len()].copy_from_slice(rest);
        // SAFETY: as above.
        #[allow(unsafe_code)]
        unsafe {
            _mm512_storeu_ps(
                widened.as_mut_ptr(),
                _mm512_cvtph_ps(_mm256_loadu_si256(padded.as_ptr().cast())),
            );
        }
        to_rest.copy_from_slice(&widened[..rest.len()]);
    }
}
