//! GPUs, kernels, and two connected ends on a soft device.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use cuda_engine::CudaEngine;
use cuda_interop::{
    CudaMemoryRegion, Gpu,
    cudarc::{
        driver::{
            CudaFunction, CudaModule, CudaSlice, CudaStream, CudaView, CudaViewMut, LaunchConfig,
            PushKernelArg,
        },
        nvrtc::Ptx,
    },
};
use ibverbs::{
    Access, Completion, CompletionQueue, ConnectOptions, Context, DeviceSelector, Devices,
    LocalPort, ProtectionDomain, QueuePair, Rc,
};
use soft_device::SoftDevice;

/// The GPUs of the machine; none, with a word about it, if the test is to be skipped.
pub(crate) fn gpus(needed: usize) -> Vec<Gpu> {
    let found =
        Gpu::count().and_then(|count| (0..count).map(Gpu::open).collect::<Result<Vec<_>, _>>());
    let reason = match found {
        Ok(gpus) if gpus.len() >= needed => return gpus,
        Ok(gpus) => format!("{} GPUs, {needed} are needed", gpus.len()),
        Err(error) => error.to_string(),
    };
    let required = std::env::var_os("CUDA_REQUIRE_DEVICE").is_some_and(|value| value == "1");
    // A machine with one GPU runs all but the tests for two.
    assert!(!required || needed > 1, "{reason}");
    println!("skipped: {reason}");
    Vec::new()
}

/// Tests run one at a time: some look at free memory, some hold writes back.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    static LOCK: Mutex<()> = Mutex::new(());
    LOCK.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) const BOTH_WAYS: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC);

/// A GPU with a stream and the kernels.
pub(crate) struct Worker {
    pub(crate) gpu: Gpu,
    pub(crate) stream: Arc<CudaStream>,
    kernels: Arc<CudaModule>,
}

impl Worker {
    pub(crate) fn new(gpu: &Gpu) -> Self {
        let kernels = gpu.context().load_module(Ptx::from_src(include_str!("kernels.ptx")));
        let stream = gpu.context().new_stream().unwrap();
        Self { gpu: gpu.clone(), stream, kernels: kernels.unwrap() }
    }

    fn function(&self, name: &str) -> CudaFunction {
        self.kernels.load_function(name).unwrap()
    }

    pub(crate) fn zeros(&self, count: usize) -> CudaSlice<u32> {
        self.gpu.allocate(&self.stream, count).unwrap()
    }

    /// Memory with `first`, `first + 1`, ….
    pub(crate) fn counting(&self, first: u32, count: usize) -> CudaSlice<u32> {
        self.stream.clone_htod(&counting(first, count)).unwrap()
    }

    /// Queues a kernel that waits and then fills memory with `first`, `first + 1`, ….
    pub(crate) fn fill_late(&self, mut to: CudaViewMut<'_, u32>, first: u32, wait: Duration) {
        let count = u32::try_from(to.len()).unwrap();
        let nanoseconds = u64::try_from(wait.as_nanos()).unwrap();
        let function = self.function("late");
        let mut launch = self.stream.launch_builder(&function);
        launch.arg(&mut to).arg(&count).arg(&first).arg(&nanoseconds);
        // SAFETY: the kernel writes `count` numbers, which the memory has.
        unsafe { launch.launch(LaunchConfig::for_num_elems(count)) }.unwrap();
    }

    /// What a kernel makes of memory: three times each number and one.
    pub(crate) fn triple(&self, from: &CudaView<'_, u32>) -> Vec<u32> {
        let count = u32::try_from(from.len()).unwrap();
        let mut to = self.zeros(from.len());
        let function = self.function("triple");
        let mut launch = self.stream.launch_builder(&function);
        launch.arg(from).arg(&mut to).arg(&count);
        // SAFETY: the kernel reads and writes `count` numbers, which both have.
        unsafe { launch.launch(LaunchConfig::for_num_elems(count)) }.unwrap();
        let result = self.stream.clone_dtoh(&to).unwrap();
        self.stream.synchronize().unwrap();
        result
    }

    pub(crate) fn free_memory(&self) -> usize {
        self.gpu.context().synchronize().unwrap();
        self.gpu.context().mem_get_info().unwrap().0
    }
}

pub(crate) fn counting(first: u32, count: usize) -> Vec<u32> {
    (first..).take(count).collect()
}

pub(crate) fn tripled(first: u32, count: usize) -> Vec<u32> {
    (first..).take(count).map(|each| each.wrapping_mul(3).wrapping_add(1)).collect()
}

/// One end: a domain, a completion queue and queue pairs that are connected to the other end's.
pub(crate) struct End {
    pub(crate) pairs: Vec<QueuePair<'static, Rc>>,
    pub(crate) queue: Arc<CompletionQueue<'static>>,
    pub(crate) domain: Arc<ProtectionDomain<'static>>,
}

/// A soft device that reaches GPUs.
pub(crate) struct Bench {
    pub(crate) device: Arc<SoftDevice>,
    pub(crate) engine: Arc<CudaEngine>,
}

/// Two ends on one soft device, with some connected queue pairs.
pub(crate) fn ends(pairs: usize) -> (End, End, Bench) {
    let device = Arc::new(SoftDevice::new());
    let engine = CudaEngine::install(&device);
    let devices = Devices::of(soft_device::library()).unwrap();
    let context = Arc::new(devices.by_name(device.name()).unwrap().open().unwrap());
    let port = context.local_port(&DeviceSelector::default()).unwrap();
    let (mut one, mut other) = (end(&context), end(&context));
    for _ in 0..pairs {
        connect(&mut one, &mut other, &port);
    }
    (one, other, Bench { device, engine })
}

fn end(context: &Arc<Context>) -> End {
    let domain = Arc::new(ProtectionDomain::allocate(context).unwrap());
    let queue = Arc::new(CompletionQueue::create(context, 64).unwrap());
    End { pairs: Vec::new(), queue, domain }
}

fn connect(one: &mut End, other: &mut End, port: &LocalPort) {
    let make =
        |end: &End| QueuePair::builder(&end.domain, &end.queue, &end.queue).create().unwrap();
    let (here, there) = (make(one), make(other));
    let (here_info, there_info) = (here.endpoint(port), there.endpoint(port));
    let access = Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
    let options = || ConnectOptions::new(port).access(access);
    one.pairs.push(here.connect(&there_info, &options()).unwrap());
    other.pairs.push(there.connect(&here_info, &options()).unwrap());
}

impl End {
    /// The next completion, which must be a success.
    pub(crate) fn wait<'s>(&self, slot: &'s mut [Completion; 1]) -> ibverbs::FinishedWork<'s> {
        let begin = Instant::now();
        // Completions are copied out, so that the place can be lent for as long as the caller wants.
        let mut here = Completion::slots::<1>();
        loop {
            if let [completion] = self.queue.poll(&mut here).unwrap() {
                slot[0] = *completion;
                return slot[0].outcome().unwrap();
            }
            assert!(begin.elapsed() < Duration::from_secs(60), "no completion came");
            std::thread::yield_now();
        }
    }
}

/// All numbers of a region, by way of a copy that is ordered after the flush.
pub(crate) fn contents(worker: &Worker, region: &CudaMemoryRegion<'_, CudaSlice<u32>>) -> Vec<u32> {
    let arrived = region.flush(cuda_interop::Visibility::Owner).unwrap();
    worker.stream.clone_dtoh(&arrived.device()).unwrap()
}
