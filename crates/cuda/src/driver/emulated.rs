//! The emulated device ([`Emulator`]): memory is the host's, and kernels are functions of a C++ library
//! (`emulator/emulator.cpp`), which is compiled from the sources of the kernels when it is first needed. Tests use it
//! on machines without a GPU.
//!
//! An operation (a launch or a clearing of memory) runs when it is started, so there is nothing to wait for. While a
//! graph is recorded, operations are collected instead.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::collections::HashMap;
use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};

use super::{Argument, Grid};

/// `emulator_launch` of the library: name of the kernel, blocks in x, y and z, threads per block, bytes of shared
/// memory, and pointers to the arguments. Returns 0 if the kernel exists.
type LaunchFunction = unsafe extern "C" fn(
    *const c_char,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    *const *const c_void,
) -> c_int;

/// The alignment of allocations in bytes, at least that of the widest loads of the kernels.
const ALIGNMENT: usize = 1024;

pub(super) struct Emulator {
    /// Whether inputs of matrix products keep their f32 values. If not, they are rounded to TF32, as on a GPU.
    exact: bool,
    /// A copy of the library that only this emulator has loaded. It is locked while a kernel runs, because the library
    /// has global variables for the current kernel.
    library: Mutex<libloading::Library>,
    /// The bytes of each allocation, by address.
    sizes: Mutex<HashMap<u64, usize>>,
    /// The operations of the graph that is being recorded, if there is one.
    recording: Mutex<Option<Vec<Operation>>>,
}

/// One operation, which runs at once or is recorded.
#[derive(Clone)]
pub(super) enum Operation {
    /// A launch of a kernel with copies of its arguments.
    Launch { kernel: &'static str, grid: Grid, arguments: Vec<Vec<u8>> },
    /// Sets bytes to zero.
    Clear { address: u64, bytes: usize },
}

impl Emulator {
    pub fn open(exact: bool) -> Self {
        let library = Mutex::new(load_copy(library_path()));
        Emulator { exact, library, sizes: Mutex::default(), recording: Mutex::default() }
    }

    pub fn allocate(&self, bytes: usize) -> u64 {
        let layout = Layout::from_size_align(bytes.max(1), ALIGNMENT).expect("a possible size");
        // SAFETY: the size is not zero.
        let address = unsafe { alloc_zeroed(layout) } as u64;
        assert!(address != 0, "out of memory");
        self.sizes.lock().expect("no panics").insert(address, bytes.max(1));
        address
    }

    pub fn free(&self, address: u64) {
        let size = self.sizes.lock().expect("no panics").remove(&address).expect("it was allocated");
        let layout = Layout::from_size_align(size, ALIGNMENT).expect("a possible size");
        // SAFETY: allocated with the same layout.
        unsafe { dealloc(address as *mut u8, layout) };
    }

    pub fn write(&self, address: u64, bytes: &[u8]) {
        // SAFETY: the caller checked the range.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), address as *mut u8, bytes.len()) };
    }

    pub fn read(&self, address: u64, bytes: &mut [u8]) {
        // SAFETY: the caller checked the range.
        unsafe { std::ptr::copy_nonoverlapping(address as *const u8, bytes.as_mut_ptr(), bytes.len()) };
    }

    pub fn launch(&self, kernel: &'static str, grid: Grid, arguments: &[&dyn Argument]) {
        let arguments = arguments.iter().map(|argument| argument.bytes().to_vec()).collect();
        self.submit(Operation::Launch { kernel, grid, arguments });
    }

    pub fn clear(&self, address: u64, bytes: usize) {
        self.submit(Operation::Clear { address, bytes });
    }

    pub fn begin_recording(&self) {
        *self.recording.lock().expect("no panics") = Some(Vec::new());
    }

    pub fn end_recording(&self) -> Vec<Operation> {
        self.recording.lock().expect("no panics").take().expect("recording began")
    }

    pub fn replay(&self, operations: &[Operation]) {
        operations.iter().for_each(|operation| self.run(operation));
    }

    /// Records the operation if a graph is being recorded, otherwise runs it.
    fn submit(&self, operation: Operation) {
        match self.recording.lock().expect("no panics").as_mut() {
            Some(operations) => operations.push(operation),
            None => self.run(&operation),
        }
    }

    fn run(&self, operation: &Operation) {
        let library = self.library.lock().expect("no panics");
        match operation {
            // SAFETY: the address and length are those of a buffer.
            Operation::Clear { address, bytes } => unsafe {
                std::ptr::write_bytes(*address as *mut u8, 0, *bytes)
            },
            Operation::Launch { kernel, grid, arguments } => {
                let name = CString::new(*kernel).expect("no zero byte");
                let pointers: Vec<*const c_void> =
                    arguments.iter().map(|argument| argument.as_ptr().cast()).collect();
                // SAFETY: the library exports these functions; the kernel copies its arguments by their types.
                let status = unsafe {
                    let set_exact: libloading::Symbol<'_, unsafe extern "C" fn(c_int)> =
                        library.get(b"emulator_set_exact").expect("the library has the function");
                    set_exact(c_int::from(self.exact));
                    let launch: libloading::Symbol<'_, LaunchFunction> =
                        library.get(b"emulator_launch").expect("the library has the function");
                    let (x, y, z) = grid.blocks;
                    launch(name.as_ptr(), x, y, z, grid.threads, grid.shared, pointers.as_ptr())
                };
                assert_eq!(status, 0, "the emulator does not know the kernel '{kernel}'");
            }
        }
    }
}

/// Loads a copy of the library, which has its own global variables. The same file would be loaded once for the whole
/// process.
fn load_copy(library: &Path) -> libloading::Library {
    static COPIES: AtomicUsize = AtomicUsize::new(0);
    let number = COPIES.fetch_add(1, Ordering::Relaxed);
    let copy = library.with_extension(format!("{}.{number}.so", std::process::id()));
    std::fs::copy(library, &copy).unwrap_or_else(|error| panic!("{}: {error}", copy.display()));
    // SAFETY: the library is built from this crate's sources, and its initialisers only set up its global variables.
    let loaded = unsafe { libloading::Library::new(&copy) };
    std::fs::remove_file(&copy).unwrap_or_else(|error| panic!("{}: {error}", copy.display()));
    loaded.unwrap_or_else(|error| panic!("{}: {error}", library.display()))
}

/// Options of the compiler. More optimisation would take longer than it saves. With GNU's unique symbols, copies of the
/// library would share the static variables of templates.
const OPTIONS: [&str; 6] =
    ["-O1", "-std=c++17", "-shared", "-fPIC", "-fno-gnu-unique", "-Wno-unknown-pragmas"];

/// The path of the library, which is compiled once for every version of its sources and kept in the folder of the
/// program that is running.
fn library_path() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let crate_folder = Path::new(env!("CARGO_MANIFEST_DIR"));
        let program = std::env::current_exe().expect("the program has a path");
        let name = format!("trueshot-emulator-{:016x}.so", hash_of_sources(crate_folder));
        let library = program.with_file_name(name);
        if !library.exists() {
            compile(&crate_folder.join("emulator/emulator.cpp"), &library);
        }
        library
    })
}

/// A hash of the compiler options and of all sources, which names the library.
fn hash_of_sources(crate_folder: &Path) -> u64 {
    let mut hasher = DefaultHasher::new();
    OPTIONS.hash(&mut hasher);
    for folder in ["emulator", "kernels"] {
        let folder = crate_folder.join(folder);
        let entries =
            std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
        let mut files: Vec<PathBuf> = entries.map(|entry| entry.expect("readable").path()).collect();
        files.retain(|file| file.is_file());
        files.sort();
        for file in files {
            std::fs::read(&file)
                .unwrap_or_else(|error| panic!("{}: {error}", file.display()))
                .hash(&mut hasher);
        }
    }
    hasher.finish()
}

/// Compiles `source` to `library`. The compiler writes to a file of this process, which is then renamed, because other
/// processes may compile at the same time.
fn compile(source: &Path, library: &Path) {
    let partial = library.with_extension(format!("{}.so", std::process::id()));
    let status = Command::new("c++").args(OPTIONS).arg("-o").arg(&partial).arg(source).status();
    assert!(status.expect("a C++ compiler is installed").success(), "the emulator does not compile");
    std::fs::rename(&partial, library).unwrap_or_else(|error| panic!("{}: {error}", library.display()));
}
