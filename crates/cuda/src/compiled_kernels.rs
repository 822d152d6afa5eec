//! The compiled kernels: one binary per GPU architecture, compressed, inside this library.
//!
//! [`for_capability`] selects the module for a GPU by its compute capability, the version of its architecture: 8.0 is
//! Ampere, 9.0 is Hopper. `kernels/build.py` makes the modules from the sources with the CUDA compiler from PyPI; a
//! test compares both.

use std::io::Read;

/// A compiled module for one architecture.
pub(crate) struct CompiledModule {
    /// A complete module as the driver loads it: binary, or PTX (portable assembly) as text. It ends with a zero byte.
    pub code: Vec<u8>,
    /// Whether it contains the kernels with Hopper's `wgmma` instructions.
    pub has_wgmma: bool,
}

/// Compute capability (major, minor), whether the module contains the `wgmma` kernels, and the compressed code.
type Binary = (u32, u32, bool, &'static [u8]);

/// The modules that are binaries, newest first. A binary runs on GPUs of the same major and the same or a higher minor
/// number.
const BINARIES: &[Binary] = &[
    (9, 0, true, include_bytes!("../kernels/compiled/sm_90a.lzma")),
    (8, 0, false, include_bytes!("../kernels/compiled/sm_80.lzma")),
];

/// The portable form (PTX), which the driver compiles for all newer architectures at the first start and then caches.
const PORTABLE: &[u8] = include_bytes!("../kernels/compiled/compute_80.lzma");

/// Whether there is a module for GPUs with this major number of their compute capability.
pub(crate) fn is_supported(major: u32) -> bool {
    major >= 8
}

/// The module for a GPU of this compute capability; `None` if the GPU is too old.
pub(crate) fn for_capability(major: u32, minor: u32) -> Option<CompiledModule> {
    let fits =
        |&&(binary_major, binary_minor, _, _): &&Binary| binary_major == major && binary_minor <= minor;
    match BINARIES.iter().find(fits) {
        Some((_, _, has_wgmma, code)) => {
            Some(CompiledModule { code: decompressed(code), has_wgmma: *has_wgmma })
        }
        None if is_supported(major) => {
            Some(CompiledModule { code: decompressed(PORTABLE), has_wgmma: false })
        }
        None => None,
    }
}

/// A decompressed module, with a zero byte at its end.
fn decompressed(code: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    lzma_rust2::LzmaReader::new_mem_limit(code, u32::MAX, None)
        .and_then(|mut reader| reader.read_to_end(&mut bytes))
        .expect("the kernels were compressed by the build script");
    // PTX is text that must end with a zero byte; binaries do not mind one.
    bytes.push(0);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_architecture_since_ampere_has_kernels_and_older_ones_have_none() {
        let is_binary =
            |major, minor| for_capability(major, minor).map(|module| module.code.starts_with(b"\x7fELF"));
        for (major, minor) in [(8, 0), (8, 6), (8, 7), (8, 9), (9, 0)] {
            assert_eq!(is_binary(major, minor), Some(true), "{major}.{minor}");
        }
        for (major, minor) in [(10, 0), (10, 3), (12, 0), (12, 1), (13, 0)] {
            assert_eq!(is_binary(major, minor), Some(false), "{major}.{minor} is compiled by the driver");
        }
        assert!(for_capability(7, 5).is_none() && !is_supported(7) && is_supported(8));
        assert!(for_capability(9, 0).unwrap().has_wgmma && !for_capability(8, 0).unwrap().has_wgmma);
    }
}
