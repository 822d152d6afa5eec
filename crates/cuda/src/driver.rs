//! A safe layer over the CUDA driver: devices, buffers, kernel launches on two queues (CUDA streams), and graphs.
//!
//! All `unsafe` code of the crate is in this file and in its module `emulated`. Start with [`Device::open`]. A
//! [`Buffer`] is typed memory on the device; [`Device::launch`] starts a kernel by name; [`Device::capture`] records
//! launches as a [`Graph`], which then runs as one.
//!
//! A device can also be emulated (feature `emulator`): the kernels are compiled as C++ and run on the CPU. Tests use it
//! on machines without a GPU, with the same sessions.
#![allow(unsafe_code)]

mod arguments;
#[cfg(feature = "emulator")]
mod emulated;

use std::collections::HashMap;
use std::ffi::{CString, c_void};
use std::marker::PhantomData;
use std::sync::{Arc, Mutex};

use bytemuck::Pod;
use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys;

use crate::compiled_kernels;
use crate::error::{Error, Result};

pub use arguments::{Address, Argument, Grid, Null, Value};

/// The lowest CUDA version of a driver that runs the kernels: 13.0, as 1000 times the major plus 10 times the minor
/// number.
const NEEDED_VERSION: i32 = 13_000;
/// Bytes of shared memory that a kernel may use without setting an attribute first.
const DEFAULT_SHARED_LEN: u32 = 48 << 10;

/// One of the two queues of a device (streams in CUDA's terms). Work on one queue runs in order; the queues run at the
/// same time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Queue {
    /// The queue of copies, graphs and most kernels.
    Main,
    /// Runs beside the main queue between [`Device::fork`] and [`Device::join`].
    Side,
}

/// A GPU, opened for this process.
#[derive(Clone)]
pub struct Device {
    backend: Arc<Backend>,
}

/// What runs the kernels of a device.
enum Backend {
    /// A GPU.
    Cuda(Cuda),
    #[cfg(feature = "emulator")]
    Emulated(emulated::Emulator),
}

/// The handles of the driver for one GPU.
struct Cuda {
    device: sys::CUdevice,
    context: sys::CUcontext,
    /// The kernels of this crate.
    module: sys::CUmodule,
    /// Main and side queue, see [`Queue`].
    queues: [sys::CUstream; 2],
    /// Marks points in the queues for fork and join.
    event: sys::CUevent,
    /// The kernels that have been launched, by name.
    functions: Mutex<HashMap<&'static str, Function>>,
    /// The times of kernels while [`Device::kernel_times`] runs.
    times: Mutex<Option<KernelTimes>>,
    name: String,
    multiprocessors: usize,
    /// Bytes of shared memory that a thread block can have.
    shared_limit: usize,
    /// Whether the module contains kernels with Hopper's `wgmma` (matrix) instructions.
    has_wgmma: bool,
}

/// Names of kernels with the microseconds of one launch, in the order of their launches.
pub type KernelTimes = Vec<(&'static str, f64)>;
/// The time of a kernel is the mean over this number of launches.
const TIMED_LAUNCHES: u32 = 20;

/// A kernel that has been looked up in the module.
#[derive(Clone, Copy)]
struct Function {
    handle: sys::CUfunction,
    /// The dynamic shared memory that the kernel may use so far, in bytes.
    shared: u32,
}

// SAFETY: the handles of the driver may be used from any thread; every operation first makes the context current on the
// calling thread.
unsafe impl Send for Cuda {}
unsafe impl Sync for Cuda {}

impl Device {
    /// Opens GPU number `ordinal`, counted from 0.
    ///
    /// # Errors
    /// If there is no driver, no such GPU, or the driver or the GPU is too old.
    pub fn open(ordinal: usize) -> Result<Self> {
        check_ordinal(ordinal)?;
        Ok(Device { backend: Arc::new(Backend::Cuda(Cuda::open(ordinal as i32)?)) })
    }

    /// The name of GPU number `ordinal`, after the checks of [`Device::open`]. The GPU is not opened, which would take
    /// several times as long.
    ///
    /// # Errors
    /// If there is no driver, no such GPU, or the driver or the GPU is too old.
    pub fn name_of(ordinal: usize) -> Result<String> {
        check_ordinal(ordinal)?;
        Ok(DeviceProperties::read(ordinal as i32)?.name)
    }

    /// A device whose kernels run on the CPU, from a library that is compiled from `emulator/emulator.cpp` with the C++
    /// compiler `c++`. GPUs round the inputs of matrix products to TF32 (10 bits of mantissa), and so does this device,
    /// unless it is `exact`.
    ///
    /// # Panics
    /// If the library cannot be compiled.
    #[cfg(feature = "emulator")]
    pub fn emulated(exact: bool) -> Self {
        Device { backend: Arc::new(Backend::Emulated(emulated::Emulator::open(exact))) }
    }

    /// The name of the GPU, such as `NVIDIA H200`.
    pub fn name(&self) -> &str {
        match &*self.backend {
            Backend::Cuda(cuda) => &cuda.name,
            #[cfg(feature = "emulator")]
            Backend::Emulated(_) => "emulator",
        }
    }

    /// The number of multiprocessors, which grids are sized by.
    pub fn multiprocessors(&self) -> usize {
        match &*self.backend {
            Backend::Cuda(cuda) => cuda.multiprocessors,
            #[cfg(feature = "emulator")]
            Backend::Emulated(_) => 2,
        }
    }

    /// Bytes of shared memory that a thread block can have.
    pub(crate) fn shared_limit(&self) -> usize {
        match &*self.backend {
            Backend::Cuda(cuda) => cuda.shared_limit,
            #[cfg(feature = "emulator")]
            Backend::Emulated(_) => 227 << 10,
        }
    }

    /// Whether kernels with Hopper's `wgmma` instructions can run.
    pub fn has_wgmma(&self) -> bool {
        match &*self.backend {
            Backend::Cuda(cuda) => cuda.has_wgmma,
            #[cfg(feature = "emulator")]
            Backend::Emulated(_) => false,
        }
    }

    /// Free and total memory in bytes.
    pub fn memory(&self) -> Result<(usize, usize)> {
        match &*self.backend {
            Backend::Cuda(cuda) => {
                cuda.bind()?;
                result::mem_get_info().map_err(|error| driver_error("reading the free memory", error))
            }
            #[cfg(feature = "emulator")]
            Backend::Emulated(_) => Ok((1 << 30, 1 << 30)),
        }
    }

    /// Allocates `len` zeros.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] with the figures.
    pub fn zeros<T: Pod>(&self, len: usize) -> Result<Buffer<T>> {
        self.zeros_with_margin(len, 0, 0)
    }

    /// Allocates `len` zeros with at least `before` and `after` more zeros around them, which kernels may read.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] with the figures.
    pub fn zeros_with_margin<T: Pod>(&self, len: usize, before: usize, after: usize) -> Result<Buffer<T>> {
        // Rounded up, so that the first element is aligned for the widest loads.
        let before = (before * size_of::<T>()).next_multiple_of(1024);
        let bytes = before + (len + after) * size_of::<T>();
        let base = match &*self.backend {
            Backend::Cuda(cuda) => cuda.allocate(bytes.max(1))?,
            #[cfg(feature = "emulator")]
            Backend::Emulated(emulator) => emulator.allocate(bytes),
        };
        Ok(Buffer { address: base + before as u64, base, len, device: self.clone(), element: PhantomData })
    }

    /// Allocates a buffer with a copy of `values`.
    pub fn upload<T: Pod>(&self, values: &[T]) -> Result<Buffer<T>> {
        let mut buffer = self.zeros(values.len())?;
        buffer.write(0, values)?;
        Ok(buffer)
    }

    /// Starts a kernel on a queue. Arguments are [`Buffer`]s and plain values, in the order of the kernel's parameters.
    ///
    /// The caller must pass what the kernel takes, in number and type, and kernels must stay inside the buffers they
    /// are given: the compiler checks neither. Only the sessions of this crate launch kernels; their tests run under
    /// compute-sanitizer (`gpu-tests`).
    pub fn launch(
        &self,
        queue: Queue,
        kernel: &'static str,
        grid: Grid,
        arguments: &[&dyn Argument],
    ) -> Result<()> {
        match &*self.backend {
            Backend::Cuda(cuda) => cuda.launch(queue, kernel, grid, arguments),
            #[cfg(feature = "emulator")]
            Backend::Emulated(emulator) => {
                emulator.launch(kernel, grid, arguments);
                Ok(())
            }
        }
    }

    /// Sets a buffer to zero, in order with the work of the main queue.
    pub fn clear<T: Pod>(&self, buffer: &Buffer<T>) -> Result<()> {
        self.clear_part(buffer, 0, buffer.len)
    }

    /// Sets `len` elements from `start` on to zero, in order with the work of the main queue.
    pub(crate) fn clear_part<T: Pod>(&self, buffer: &Buffer<T>, start: usize, len: usize) -> Result<()> {
        assert!(start + len <= buffer.len, "{start} + {len} of {} elements", buffer.len);
        let (address, bytes) = (buffer.address + (start * size_of::<T>()) as u64, len * size_of::<T>());
        match &*self.backend {
            Backend::Cuda(cuda) => {
                cuda.bind()?;
                // SAFETY: the buffer has `bytes` bytes from `address` on.
                unsafe { result::memset_d8_async(address, 0, bytes, cuda.main_queue()) }
                    .map_err(|error| driver_error("clearing memory", error))
            }
            #[cfg(feature = "emulator")]
            Backend::Emulated(emulator) => {
                emulator.clear(address, bytes);
                Ok(())
            }
        }
    }

    /// The side queue waits for the earlier work of the main queue, and then runs in parallel with its later work.
    pub fn fork(&self) -> Result<()> {
        self.order(Queue::Main, Queue::Side)
    }

    /// The main queue waits for the side queue from here on.
    pub fn join(&self) -> Result<()> {
        self.order(Queue::Side, Queue::Main)
    }

    /// Lets the later work of queue `second` wait for the earlier work of queue `first`.
    fn order(&self, first: Queue, second: Queue) -> Result<()> {
        match &*self.backend {
            Backend::Cuda(cuda) => {
                cuda.bind()?;
                let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
                // SAFETY: event and queues live as long as the device.
                unsafe { result::event::record(cuda.event, cuda.queues[first as usize]) }
                    .and_then(|()| unsafe {
                        result::stream::wait_event(cuda.queues[second as usize], cuda.event, flags)
                    })
                    .map_err(|error| driver_error("ordering the queues", error))
            }
            #[cfg(feature = "emulator")]
            Backend::Emulated(_) => Ok(()),
        }
    }

    /// Waits for the work of the main queue, and for that of the side queue that was joined.
    ///
    /// # Errors
    /// [`Error::Lost`] if the GPU stopped working.
    pub fn synchronise(&self) -> Result<()> {
        match &*self.backend {
            Backend::Cuda(cuda) => {
                cuda.bind()?;
                // SAFETY: the queue lives as long as the device.
                unsafe { result::stream::synchronize(cuda.main_queue()) }
                    .map_err(|error| driver_error("waiting for the GPU", error))
            }
            #[cfg(feature = "emulator")]
            Backend::Emulated(_) => Ok(()),
        }
    }

    /// The time of every kernel that `record` launches. Each is launched several times in a row, so the results of the
    /// kernels are meaningless. The emulator measures nothing.
    pub fn kernel_times(&self, record: impl FnOnce() -> Result<()>) -> Result<KernelTimes> {
        match &*self.backend {
            Backend::Cuda(cuda) => {
                let times = || cuda.times.lock().expect("no thread panics while it holds the lock");
                *times() = Some(KernelTimes::new());
                let recorded = record();
                let measured = times().take().unwrap_or_default();
                recorded.map(|()| measured)
            }
            #[cfg(feature = "emulator")]
            Backend::Emulated(_) => record().map(|()| KernelTimes::new()),
        }
    }

    /// Records the work that `record` starts as a graph, without doing it. Work on the side queue is part of it if
    /// `record` forks and joins the queues. A graph holds addresses and does not keep buffers alive: the caller keeps
    /// them as long as it launches the graph. A session owns its graph and the buffers in it.
    pub fn capture(&self, record: impl FnOnce() -> Result<()>) -> Result<Graph> {
        match &*self.backend {
            Backend::Cuda(cuda) => {
                let executable = cuda.capture(record)?;
                Ok(Graph { device: self.clone(), work: Work::Cuda(executable) })
            }
            #[cfg(feature = "emulator")]
            Backend::Emulated(emulator) => {
                emulator.begin_recording();
                let recorded = record();
                let operations = emulator.end_recording();
                recorded.map(|()| Graph { device: self.clone(), work: Work::Emulated(operations) })
            }
        }
    }
}

/// Checks that the thread blocks of a kernel can have `bytes` bytes of shared memory, if at most `limit` bytes are
/// available.
pub(crate) fn check_shared(what: &'static str, bytes: usize, limit: usize) -> Result<()> {
    if bytes > limit {
        return Err(Error::TooLarge { what, needed: bytes.div_ceil(1024), limit: limit / 1024 });
    }
    Ok(())
}

/// Checks that there is a driver that is new enough, and a GPU number `ordinal`.
fn check_ordinal(ordinal: usize) -> Result<()> {
    // SAFETY: loads the driver library, whose initialisers are NVIDIA's.
    if !unsafe { sys::is_culib_present() } {
        return Err(Error::NoDriver);
    }
    match result::init() {
        Err(DriverError(sys::CUresult::CUDA_ERROR_NO_DEVICE)) => return Err(Error::NoDevice),
        other => other.map_err(|error| driver_error("initialising the driver", error))?,
    }
    check_version()?;
    let count = result::device::get_count().map_err(|error| driver_error("counting the GPUs", error))?;
    let count = usize::try_from(count).unwrap_or(0);
    match count {
        0 => Err(Error::NoDevice),
        _ if ordinal >= count => Err(Error::NoSuchDevice { wanted: ordinal, count }),
        _ => Ok(()),
    }
}

/// The properties of a GPU that is not opened yet.
struct DeviceProperties {
    device: sys::CUdevice,
    name: String,
    /// Major and minor number.
    capability: (u32, u32),
    multiprocessors: usize,
    /// Bytes of shared memory that a thread block can have.
    shared_limit: usize,
}

impl DeviceProperties {
    /// Reads the properties, and refuses a GPU that is too old.
    fn read(ordinal: i32) -> Result<Self> {
        let failed = |error| driver_error("opening the GPU", error);
        let device = result::device::get(ordinal).map_err(failed)?;
        let name = result::device::get_name(device).map_err(failed)?;
        // SAFETY: the device exists.
        let attribute =
            |attribute| unsafe { result::device::get_attribute(device, attribute) }.map_err(failed);
        use sys::CUdevice_attribute as A;
        let major = attribute(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
        let minor = attribute(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
        let multiprocessors = attribute(A::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)? as usize;
        let shared_limit = attribute(A::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)? as usize;
        let capability = (major as u32, minor as u32);
        if !compiled_kernels::is_supported(capability.0) {
            return Err(Error::Unsupported { name, found: format!("{major}.{minor}") });
        }
        Ok(DeviceProperties { device, name, capability, multiprocessors, shared_limit })
    }
}

/// Checks that the driver is new enough.
fn check_version() -> Result<()> {
    let mut version = 0;
    // SAFETY: the pointer is valid during the call.
    let status = unsafe { sys::cuDriverGetVersion(&mut version) };
    status.result().map_err(|error| driver_error("reading the version of the driver", error))?;
    // CUDA 13.1 is 13010.
    let shown = |version: i32| format!("{}.{}", version / 1000, version % 1000 / 10);
    if version < NEEDED_VERSION {
        return Err(Error::OldDriver { found: shown(version), needed: shown(NEEDED_VERSION) });
    }
    Ok(())
}

/// Whether the context, and so the device, can no longer be used after this error.
fn is_lost(status: sys::CUresult) -> bool {
    use sys::CUresult as E;
    matches!(
        status,
        E::CUDA_ERROR_ILLEGAL_ADDRESS
            | E::CUDA_ERROR_LAUNCH_FAILED
            | E::CUDA_ERROR_LAUNCH_TIMEOUT
            | E::CUDA_ERROR_ECC_UNCORRECTABLE
            | E::CUDA_ERROR_HARDWARE_STACK_ERROR
            | E::CUDA_ERROR_ILLEGAL_INSTRUCTION
            | E::CUDA_ERROR_MISALIGNED_ADDRESS
            | E::CUDA_ERROR_DEVICE_UNAVAILABLE
            | E::CUDA_ERROR_CONTEXT_IS_DESTROYED
    )
}

/// The error of an operation, such as `"allocating memory"` or the name of a kernel.
fn driver_error(operation: &'static str, error: DriverError) -> Error {
    let text = |text: std::result::Result<&std::ffi::CStr, DriverError>| {
        text.map_or_else(|_| format!("{:?}", error.0), |text| text.to_string_lossy().into_owned())
    };
    let message = format!("{} ({})", text(error.error_string()), text(error.error_name()));
    if is_lost(error.0) { Error::Lost(message) } else { Error::Driver { operation, message } }
}

/// The mean time of a launch in microseconds, after one launch that does not count.
fn time_launches(stream: sys::CUstream, mut launch: impl FnMut() -> Result<()>) -> Result<f64> {
    let failed = |error| driver_error("measuring a kernel", error);
    let event = || result::event::create(sys::CUevent_flags::CU_EVENT_DEFAULT).map_err(failed);
    let [start, end] = [event()?, event()?];
    launch()?;
    // SAFETY: events and queue exist until the end of this function.
    unsafe { result::event::record(start, stream) }.map_err(failed)?;
    for _ in 0..TIMED_LAUNCHES {
        launch()?;
    }
    // SAFETY: as above.
    unsafe {
        result::event::record(end, stream).map_err(failed)?;
        result::event::synchronize(end).map_err(failed)?;
        let milliseconds = result::event::elapsed(start, end).map_err(failed)?;
        result::event::destroy(start).map_err(failed)?;
        result::event::destroy(end).map_err(failed)?;
        Ok(f64::from(milliseconds) * 1e3 / f64::from(TIMED_LAUNCHES))
    }
}

impl Cuda {
    /// Opens GPU number `ordinal` and loads the kernels.
    fn open(ordinal: i32) -> Result<Self> {
        let failed = |error| driver_error("opening the GPU", error);
        let DeviceProperties { device, name, capability, multiprocessors, shared_limit } =
            DeviceProperties::read(ordinal)?;
        let Some(compiled) = compiled_kernels::for_capability(capability.0, capability.1) else {
            let found = format!("{}.{}", capability.0, capability.1);
            return Err(Error::Unsupported { name, found });
        };
        let queue = || result::stream::create(result::stream::StreamKind::NonBlocking).map_err(failed);
        let flags = sys::CUevent_flags::CU_EVENT_DISABLE_TIMING;
        // SAFETY: the device exists, the context is made current before it is used, and the code is a complete module
        // that ends with a zero byte.
        unsafe {
            let context = result::primary_ctx::retain(device).map_err(failed)?;
            result::ctx::set_current(context).map_err(failed)?;
            Ok(Cuda {
                device,
                context,
                module: result::module::load_data(compiled.code.as_ptr().cast())
                    .map_err(|error| driver_error("loading the kernels", error))?,
                queues: [queue()?, queue()?],
                event: result::event::create(flags).map_err(failed)?,
                functions: Mutex::default(),
                times: Mutex::default(),
                name,
                multiprocessors,
                shared_limit,
                has_wgmma: compiled.has_wgmma,
            })
        }
    }

    /// The queue of copies, graphs and most kernels.
    fn main_queue(&self) -> sys::CUstream {
        self.queues[Queue::Main as usize]
    }

    /// Makes the context current on this thread.
    fn bind(&self) -> Result<()> {
        // SAFETY: the context lives as long as the device.
        unsafe { result::ctx::set_current(self.context) }
            .map_err(|error| driver_error("selecting the GPU", error))
    }

    /// Allocates `bytes` bytes of zeros and returns their address.
    fn allocate(&self, bytes: usize) -> Result<u64> {
        self.bind()?;
        // SAFETY: the memory is set to zero before any kernel reads it.
        let allocated = unsafe { result::malloc_sync(bytes) };
        let address = match allocated {
            Err(DriverError(sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY)) => {
                let (free, total) = result::mem_get_info().unwrap_or((0, 0));
                let mib = |bytes: usize| bytes.div_ceil(1 << 20);
                return Err(Error::OutOfMemory { needed: mib(bytes), free: free >> 20, total: mib(total) });
            }
            other => other.map_err(|error| driver_error("allocating memory", error))?,
        };
        // On the main queue, so that its later work finds the zeros: work on the default stream would not be ordered
        // with it.
        // SAFETY: the memory was just allocated with this length.
        unsafe { result::memset_d8_async(address, 0, bytes, self.main_queue()) }
            .map_err(|error| driver_error("clearing memory", error))?;
        Ok(address)
    }

    /// The handle of a kernel, prepared for `shared` bytes of dynamic shared memory. Above 48 KiB, the driver requires
    /// an attribute of the kernel to be set first.
    fn function(&self, kernel: &'static str, shared: u32) -> Result<sys::CUfunction> {
        let mut functions = self.functions.lock().expect("no thread panics while it holds the lock");
        let known = match functions.get(kernel) {
            Some(function) => *function,
            None => {
                let name = CString::new(kernel).expect("names of kernels contain no zero byte");
                // SAFETY: the module lives as long as the device.
                let handle = unsafe { result::module::get_function(self.module, name) }
                    .map_err(|error| driver_error(kernel, error))?;
                Function { handle, shared: DEFAULT_SHARED_LEN }
            }
        };
        if shared > known.shared {
            use sys::CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES as SHARED;
            // SAFETY: the function exists.
            unsafe { result::function::set_function_attribute(known.handle, SHARED, shared as i32) }
                .map_err(|error| driver_error(kernel, error))?;
        }
        functions.insert(kernel, Function { shared: known.shared.max(shared), ..known });
        Ok(known.handle)
    }

    /// Launches a kernel, or times it while [`Device::kernel_times`] runs.
    fn launch(
        &self,
        queue: Queue,
        kernel: &'static str,
        grid: Grid,
        arguments: &[&dyn Argument],
    ) -> Result<()> {
        self.bind()?;
        let function = self.function(kernel, grid.shared)?;
        let mut pointers: Vec<*mut c_void> =
            arguments.iter().map(|argument| argument.bytes().as_ptr().cast_mut().cast()).collect();
        let (blocks, threads) = (grid.blocks, (grid.threads, 1, 1));
        let stream = self.queues[queue as usize];
        // SAFETY: the arguments are copied during the call. The kernels stay within their buffers.
        let mut launch = || {
            unsafe { result::launch_kernel(function, blocks, threads, grid.shared, stream, &mut pointers) }
                .map_err(|error| driver_error(kernel, error))
        };
        let mut times = self.times.lock().expect("no thread panics while it holds the lock");
        match &mut *times {
            None => launch(),
            Some(times) => {
                times.push((kernel, time_launches(stream, launch)?));
                Ok(())
            }
        }
    }

    /// Records the launches of `record` on this thread as a graph.
    fn capture(&self, record: impl FnOnce() -> Result<()>) -> Result<sys::CUgraphExec> {
        self.bind()?;
        let failed = |error| driver_error("recording a graph", error);
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the queue lives as long as the device; the recorded graph is destroyed after it is instantiated.
        unsafe {
            result::stream::begin_capture(self.main_queue(), mode).map_err(failed)?;
            let recorded = record();
            let graph = result::stream::end_capture(self.main_queue()).map_err(failed);
            if let (Err(_), Ok(graph)) = (&recorded, &graph) {
                let _ = result::graph::destroy(*graph);
            }
            recorded?;
            let graph = graph?;
            let executable =
                result::graph::instantiate(graph, sys::CUgraphInstantiate_flags(0)).map_err(failed);
            result::graph::destroy(graph).map_err(failed)?;
            executable
        }
    }
}

impl Drop for Cuda {
    fn drop(&mut self) {
        // Errors are ignored: the process may be ending because the GPU was lost.
        // SAFETY: nothing uses the handles after this.
        unsafe {
            let _ = result::ctx::set_current(self.context);
            let _ = result::event::destroy(self.event);
            for queue in self.queues {
                let _ = result::stream::destroy(queue);
            }
            let _ = result::module::unload(self.module);
            let _ = result::primary_ctx::release(self.device);
        }
    }
}

/// Memory on a device, for `len` values of type `T`.
pub struct Buffer<T> {
    /// The address of the first element.
    address: u64,
    /// The address of the allocation, which is lower if there is a margin before the first element.
    base: u64,
    len: usize,
    device: Device,
    element: PhantomData<T>,
}

impl<T: Pod> Buffer<T> {
    /// The number of elements, without margins.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the buffer has no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Copies `values` to the elements from `start` on, after the earlier work of the main queue.
    ///
    /// # Panics
    /// If they do not fit.
    pub fn write(&mut self, start: usize, values: &[T]) -> Result<()> {
        assert!(start + values.len() <= self.len, "{} values at {start} of {}", values.len(), self.len);
        if values.is_empty() {
            return Ok(());
        }
        let address = self.address + (start * size_of::<T>()) as u64;
        match &*self.device.backend {
            Backend::Cuda(cuda) => {
                cuda.bind()?;
                // SAFETY: the range was checked. `values` is ordinary (pageable) memory, which the driver has
                // copied when the call returns.
                unsafe { result::memcpy_htod_async(address, values, cuda.main_queue()) }
                    .map_err(|error| driver_error("copying to the GPU", error))
            }
            #[cfg(feature = "emulator")]
            Backend::Emulated(emulator) => {
                emulator.write(address, bytemuck::cast_slice(values));
                Ok(())
            }
        }
    }

    /// Copies the elements from `start` on to `values`, after all earlier work.
    ///
    /// # Panics
    /// If the buffer ends before.
    pub fn read_into(&self, start: usize, values: &mut [T]) -> Result<()> {
        assert!(start + values.len() <= self.len, "{} values at {start} of {}", values.len(), self.len);
        let address = self.address + (start * size_of::<T>()) as u64;
        match &*self.device.backend {
            Backend::Cuda(cuda) => {
                self.device.synchronise()?;
                cuda.bind()?;
                // SAFETY: the range was checked, and any bytes are a valid `T`.
                unsafe { result::memcpy_dtoh_sync(values, address) }
                    .map_err(|error| driver_error("copying from the GPU", error))
            }
            #[cfg(feature = "emulator")]
            Backend::Emulated(emulator) => {
                emulator.read(address, bytemuck::cast_slice_mut(values));
                Ok(())
            }
        }
    }

    /// A copy of all elements, after all earlier work.
    pub fn read(&self) -> Result<Vec<T>> {
        let mut values = vec![T::zeroed(); self.len];
        self.read_into(0, &mut values)?;
        Ok(values)
    }

    /// The address of the first element, for structures that are passed to kernels.
    pub(crate) fn address(&self) -> u64 {
        self.address
    }

    /// The elements from `start` on, as an argument of a kernel.
    pub fn at(&self, start: usize) -> Address<T> {
        assert!(start <= self.len, "{start} of {}", self.len);
        Address::new(self.address + (start * size_of::<T>()) as u64)
    }
}

impl<T> Drop for Buffer<T> {
    fn drop(&mut self) {
        match &*self.device.backend {
            Backend::Cuda(cuda) => {
                // SAFETY: nothing uses the memory after this: the driver waits for running kernels, and graphs are not
                // launched after their buffers are gone (see `capture`).
                let _ = cuda.bind().map(|()| unsafe { result::free_sync(self.base) });
            }
            #[cfg(feature = "emulator")]
            Backend::Emulated(emulator) => emulator.free(self.base),
        }
    }
}

impl<T> Argument for Buffer<T> {
    fn bytes(&self) -> &[u8] {
        bytemuck::bytes_of(&self.address)
    }
}

/// Recorded work that is started as a whole, which takes less time than launching its kernels one by one.
pub struct Graph {
    device: Device,
    work: Work,
}

/// The recorded work of a graph.
enum Work {
    Cuda(sys::CUgraphExec),
    #[cfg(feature = "emulator")]
    Emulated(Vec<emulated::Operation>),
}

// SAFETY: see `Cuda`.
unsafe impl Send for Graph {}

impl Graph {
    /// Starts the work on the main queue.
    pub fn launch(&self) -> Result<()> {
        match (&*self.device.backend, &self.work) {
            (Backend::Cuda(cuda), Work::Cuda(executable)) => {
                cuda.bind()?;
                // SAFETY: graph and queue live as long as the device.
                unsafe { result::graph::launch(*executable, cuda.main_queue()) }
                    .map_err(|error| driver_error("starting a graph", error))
            }
            #[cfg(feature = "emulator")]
            (Backend::Emulated(emulator), Work::Emulated(operations)) => {
                emulator.replay(operations);
                Ok(())
            }
            #[cfg(feature = "emulator")]
            _ => unreachable!("a graph belongs to its device"),
        }
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        #[cfg_attr(not(feature = "emulator"), allow(irrefutable_let_patterns))]
        if let (Backend::Cuda(cuda), Work::Cuda(executable)) = (&*self.device.backend, &self.work) {
            // SAFETY: nothing uses the graph after this.
            let _ = cuda.bind().map(|()| unsafe { result::graph::exec_destroy(*executable) });
        }
    }
}
