//! What this crate costs on a GPU: registration and flush beside the bare calls of driver and verbs in the same process,
//! and bytes per second through the soft device beside the driver's own copies.
//!
//! ```text
//! cargo bench --bench gpu_cost
//! ```
//!
//! Needs a GPU and no NIC. Rounds of the two sides alternate; medians are compared, since lone times mean little.
#![expect(
    unsafe_code,
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::cast_precision_loss,
    reason = "a program that measures bare calls and prints"
)]

use std::{
    error::Error,
    ffi::c_int,
    hint::black_box,
    process::ExitCode,
    sync::Arc,
    time::{Duration, Instant},
};

use cuda_engine::CudaEngine;
use cuda_interop::{
    CudaMemoryRegion, DeviceBuffer, Gpu, Registration, VirtualMemory, Visibility,
    cudarc::driver::{DevicePtr, result, sys},
    register,
};
use ibverbs::{
    Access, Completion, CompletionQueue, ConnectOptions, Context, DeviceSelector, Devices,
    ProtectionDomain, QueuePair, Rc, SendWr,
};
use soft_device::SoftDevice;

type AnyError = Box<dyn Error>;

const ACCESS: Access = Access::LOCAL_WRITE.union(Access::REMOTE_WRITE).union(Access::REMOTE_READ);
const KIB: usize = 1 << 10;
const GIB: usize = 1 << 30;

fn main() -> ExitCode {
    match measure() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("gpu_cost: {}", example_support::chain(error.as_ref()));
            // `cargo bench` and `cargo test --benches` run on machines without a GPU too.
            let required =
                std::env::var_os("CUDA_REQUIRE_DEVICE").is_some_and(|value| value == "1");
            if required || Gpu::count().is_ok() { ExitCode::FAILURE } else { ExitCode::SUCCESS }
        }
    }
}

fn measure() -> Result<(), AnyError> {
    let gpus = (0..Gpu::count()?).map(Gpu::open).collect::<Result<Vec<_>, _>>()?;
    for gpu in &gpus {
        println!("{:?}", gpu.capabilities()?);
    }
    let gpu = gpus.first().ok_or("there is no GPU")?;
    let device = SoftDevice::new();
    let _engine = CudaEngine::install(&device);
    let devices = Devices::of(soft_device::library())?;
    let context = Arc::new(devices.by_name(device.name()).ok_or("no soft device")?.open()?);
    let domain = Arc::new(ProtectionDomain::allocate(&context)?);

    registrations(gpu, &domain)?;
    flushes(gpu, &domain)?;
    for from in &gpus {
        for to in &gpus {
            bytes_per_second(from, to, &context, &domain)?;
        }
    }
    Ok(())
}

/// Registers and deregisters memory of several sizes, by this crate and by the bare calls.
fn registrations(gpu: &Gpu, domain: &Arc<ProtectionDomain<'static>>) -> Result<(), AnyError> {
    println!("\nregistration and deregistration, medians");
    println!(
        "{:>12} {:>14} {:>12} {:>10} {:>7}",
        "bytes", "this crate us", "bare us", "export us", "ratio"
    );
    let stream = gpu.context().default_stream();
    for size in [4 * KIB, 64 * KIB, 1 << 20, 16 << 20, 256 << 20, GIB, 8 * GIB] {
        let mut buffer = VirtualMemory::<u8>::allocate(gpu, &stream, size)?;
        let (address, _) = buffer.memory().device_ptr(&stream);
        stream.synchronize()?;
        let (mut ours, mut bare, mut export) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..400 {
            let begin = Instant::now();
            let region = Registration::new(ACCESS).register_on(gpu, domain, buffer)?;
            buffer = black_box(region).into_buffer()?;
            ours.push(begin.elapsed());

            let begin = Instant::now();
            let exported = register_bare(domain, address, size)?;
            bare.push(begin.elapsed());
            export.push(exported);
        }
        let (ours, bare, export) = (median(ours), median(bare), median(export));
        let ratio = ours.as_secs_f64() / bare.as_secs_f64();
        println!(
            "{size:>12} {:>14.2} {:>12.2} {:>10.2} {ratio:>7.3}",
            microseconds(ours),
            microseconds(bare),
            microseconds(export)
        );
    }
    Ok(())
}

/// The calls that a registration cannot do without: export, register, close, deregister. Returns the time of the export.
fn register_bare(
    domain: &ProtectionDomain<'_>,
    address: u64,
    length: usize,
) -> Result<Duration, AnyError> {
    let verbs = domain.context().library().verbs();
    let register = verbs.ibv_reg_dmabuf_mr.ok_or("no ibv_reg_dmabuf_mr")?;
    let deregister = verbs.ibv_dereg_mr.ok_or("no ibv_dereg_mr")?;
    let mut fd: c_int = -1;
    let begin = Instant::now();
    let kind = sys::CUmemRangeHandleType::CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD;
    let place = (&raw mut fd).cast();
    // SAFETY: the place has room for a descriptor, and the memory is allocated in whole pages.
    unsafe { sys::cuMemGetHandleForAddressRange(place, address, length, kind, 0) }.result()?;
    let exported = begin.elapsed();
    let access = ACCESS.bits().cast_signed();
    // SAFETY: the domain lives, and nobody holds references to memory of a GPU.
    let region = unsafe { register(domain.as_raw(), 0, length, address, fd, access) };
    // SAFETY: the descriptor was made above and is used no more.
    unsafe { libc::close(fd) };
    if region.is_null() {
        return Err("ibv_reg_dmabuf_mr failed".into());
    }
    // SAFETY: registered above.
    match unsafe { deregister(region) } {
        0 => Ok(exported),
        code => Err(format!("ibv_dereg_mr returned {code}").into()),
    }
}

fn flushes(gpu: &Gpu, domain: &Arc<ProtectionDomain<'static>>) -> Result<(), AnyError> {
    const ROUNDS: u32 = 10_000;
    let stream = gpu.context().default_stream();
    let region = register(domain, gpu.allocate::<u8>(&stream, 4096)?, ACCESS)?;
    stream.synchronize()?;
    println!("\naccess after an arrival, nanoseconds each, of {ROUNDS}");
    let each = |name: &str, call: &dyn Fn() -> Result<(), AnyError>| -> Result<(), AnyError> {
        let begin = Instant::now();
        for _ in 0..ROUNDS {
            call()?;
        }
        println!("{name:>34} {:>8.0}", begin.elapsed().as_secs_f64() * 1e9 / f64::from(ROUNDS));
        Ok(())
    };
    each("flush(Visibility::Owner)", &|| {
        black_box(region.flush(Visibility::Owner)?);
        Ok(())
    })?;
    each("flush(Visibility::AllDevices)", &|| {
        black_box(region.flush(Visibility::AllDevices)?);
        Ok(())
    })?;
    let target =
        sys::CUflushGPUDirectRDMAWritesTarget::CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX;
    let scope =
        sys::CUflushGPUDirectRDMAWritesScope::CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_ALL_DEVICES;
    each("cuFlushGPUDirectRDMAWrites", &|| {
        // SAFETY: the context is the thread's.
        Ok(unsafe { sys::cuFlushGPUDirectRDMAWrites(target, scope) }.result()?)
    })?;
    each("ready_after(idle stream)", &|| {
        black_box(region.ready_after(&stream)?);
        Ok(())
    })?;
    each("cuStreamSynchronize", &|| {
        // SAFETY: the default stream is always there.
        Ok(unsafe { result::stream::synchronize(stream.cu_stream()) }?)
    })
}

/// Writes of one size from a GPU to a GPU, by the soft device and by the driver.
fn bytes_per_second(
    from: &Gpu,
    to: &Gpu,
    context: &Arc<Context>,
    domain: &Arc<ProtectionDomain<'static>>,
) -> Result<(), AnyError> {
    println!("\nGPU {} to GPU {}, GB/s", from.ordinal(), to.ordinal());
    println!("{:>12} {:>12} {:>14} {:>7}", "bytes", "soft device", "cuMemcpyPeer", "ratio");
    let queue = Arc::new(CompletionQueue::create(context, 16)?);
    let port = context.local_port(&DeviceSelector::default())?;
    let make = || QueuePair::<Rc, _>::builder(domain, &queue, &queue).create();
    let (here, there) = (make()?, make()?);
    let (here_info, there_info) = (here.endpoint(&port), there.endpoint(&port));
    let options = ConnectOptions::new(&port).access(Access::REMOTE_WRITE);
    let (here, _there) =
        (here.connect(&there_info, &options)?, there.connect(&here_info, &options)?);
    for size in [64 * KIB, 1 << 20, 16 << 20, 256 << 20, GIB] {
        let region = |gpu: &Gpu| -> Result<CudaMemoryRegion<'static, _>, AnyError> {
            let stream = gpu.context().default_stream();
            Ok(register(domain, gpu.allocate::<u8>(&stream, size)?, ACCESS)?)
        };
        let (source, target) = (region(from)?, region(to)?);
        let ready = source.ready_after(&from.context().default_stream())?;
        target.ready_after(&to.context().default_stream())?;
        let remote = target.landing_after(target.stream())?.remote().at(0)?;
        let rounds = (4 * GIB / size).clamp(8, 400);
        let (mut ours, mut bare) = (Vec::new(), Vec::new());
        let mut slots = Completion::slots::<1>();
        for _ in 0..rounds {
            let begin = Instant::now();
            let write = SendWr::write(ready.segment(..)?, &remote).signaled();
            here.post_send(&mut [write])?;
            while queue.poll(&mut slots)?.is_empty() {}
            slots[0].outcome()?;
            ours.push(begin.elapsed());

            let stream = to.context().default_stream();
            to.context().bind_to_thread()?;
            let begin = Instant::now();
            let (target, to) = (target.address(), to.context().cu_ctx());
            let (source, from) = (source.address(), from.context().cu_ctx());
            // SAFETY: both regions have the bytes, and nothing else uses them.
            unsafe { sys::cuMemcpyPeerAsync(target, to, source, from, size, stream.cu_stream()) }
                .result()?;
            stream.synchronize()?;
            bare.push(begin.elapsed());
        }
        let speed = |time: Duration| size as f64 / time.as_secs_f64() / 1e9;
        let (ours, bare) = (speed(median(ours)), speed(median(bare)));
        println!("{size:>12} {ours:>12.1} {bare:>14.1} {:>7.3}", ours / bare);
    }
    Ok(())
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

fn microseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}
