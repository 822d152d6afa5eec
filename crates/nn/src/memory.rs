//! Prefetching of rows ([`prefetch`]), and conversion of half-precision numbers to single precision ([`widen_f16`]):
//! large files of embeddings hold half-precision numbers.

#[cfg(target_arch = "x86_64")]
use crate::isa::Isa;

/// Bytes of a cache line on the supported processors.
const CACHE_LINE: usize = 64;

/// Prefetches `bytes` into the cache. The rows of an episode are far apart, and the hardware prefetcher starts anew at
/// each of them. If `bytes` does not start at a cache line, its last line may be left out.
#[inline(always)]
pub fn prefetch(bytes: &[u8]) {
    for line in bytes.chunks(CACHE_LINE) {
        prefetch_line(line.as_ptr());
    }
}

/// Prefetches the cache line that holds an address into the second-level cache. Does nothing on processors other than
/// x86-64.
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

/// Converts half-precision numbers, given as their bits, to single precision, if the current instruction set has an
/// instruction for it (AVX-512 only). Otherwise returns `false` and leaves `to` unchanged, and the caller converts the
/// numbers itself.
///
/// # Panics
/// If the lengths differ.
pub fn widen_f16(from: &[u16], to: &mut [f32]) -> bool {
    assert_eq!(from.len(), to.len());
    #[cfg(target_arch = "x86_64")]
    // `is_usable` is always true for the current set; it is repeated so that the unsafe call is safe by this line
    // alone.
    if Isa::current() == Isa::Avx512 && Isa::Avx512.is_usable() {
        // SAFETY: the processor has just been found to have the instruction set.
        #[allow(unsafe_code)]
        unsafe {
            widen_f16_avx512(from, to);
        }
        return true;
    }
    false
}

/// Converts sixteen numbers per instruction; the last group is padded with zeros.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
fn widen_f16_avx512(from: &[u16], to: &mut [f32]) {
    use std::arch::x86_64::{_mm256_loadu_si256, _mm512_cvtph_ps, _mm512_storeu_ps};
    const LANES: usize = 16;
    let (from_chunks, from_tail) = from.as_chunks::<LANES>();
    let (to_chunks, to_tail) = to.as_chunks_mut::<LANES>();
    for (from, to) in from_chunks.iter().zip(to_chunks) {
        // SAFETY: both pointers are to arrays of 16 numbers, and neither access needs alignment.
        #[allow(unsafe_code)]
        unsafe {
            _mm512_storeu_ps(to.as_mut_ptr(), _mm512_cvtph_ps(_mm256_loadu_si256(from.as_ptr().cast())));
        }
    }
    if !from_tail.is_empty() {
        let (mut padded, mut widened) = ([0; LANES], [0.0; LANES]);
        padded[..from_tail.len()].copy_from_slice(from_tail);
        // SAFETY: as above.
        #[allow(unsafe_code)]
        unsafe {
            _mm512_storeu_ps(
                widened.as_mut_ptr(),
                _mm512_cvtph_ps(_mm256_loadu_si256(padded.as_ptr().cast())),
            );
        }
        to_tail.copy_from_slice(&widened[..from_tail.len()]);
    }
}
