//! Memory that the caller registered, which the target reaches through a device in software.

use ibverbs::{Access, MemoryRegion};
use soft_device::SoftDevice;

use super::{connect, options, transferring::pattern};
use crate::{
    Error, Part, Reconnect, Request,
    fake::{FakeTarget, Nic},
};

/// Requests of one command and of several, all of whose data travels by RDMA.
const LENGTHS: [usize; 3] = [512, 512 * 9, 512 * 1000];

#[test]
fn a_buffer_of_the_caller_is_written_and_read() {
    let device = SoftDevice::new();
    let target = FakeTarget::new(1024);
    target.lock().nic = Some(Nic::new(&device));
    let controller = connect(&target, options().in_capsule_data(false)).unwrap();
    let namespace = controller.namespace(1).unwrap();
    for (round, length) in LENGTHS.into_iter().enumerate() {
        let (out, back) =
            (pattern(length, 2 * round as u64), pattern(length, 2 * round as u64 + 1));
        let memory = controller.register(out.clone()).unwrap();
        namespace.write(3, &memory).unwrap();
        assert_eq!(target.lock().storage[3 * 512..][..length], out);
        target.lock().storage[3 * 512..][..length].copy_from_slice(&back);
        namespace.read(3, &memory).unwrap();
        assert_eq!(memory.into_buffer().unwrap(), back);
    }
    assert_eq!(device.violations(), Vec::<String>::new());
}

#[test]
fn memory_that_the_target_would_not_reach_is_refused_before_anything_is_sent() {
    let device = SoftDevice::new();
    let target = FakeTarget::new(16);
    target.lock().nic = Some(Nic::new(&device));
    let controller = connect(&target, options().reconnect(Reconnect::NEVER)).unwrap();
    let namespace = controller.namespace(1).unwrap();
    let other = FakeTarget::new(16);
    other.lock().nic = Some(Nic::new(&device));
    let elsewhere = connect(&other, options()).unwrap().register(vec![0; 512]).unwrap();
    for refused in [
        namespace.read(0, &elsewhere),
        namespace.write(0, &elsewhere),
        namespace.compare(0, &Part::new(&elsewhere, 0..512).unwrap()).map(drop),
    ] {
        let text = refused.unwrap_err().to_string();
        assert!(text.contains("another protection domain"), "{text}");
    }
    let mut queue = controller.take_queue().unwrap();
    let refused = queue.submit(Request::read(&namespace, 0, elsewhere)).unwrap_err();
    assert!(matches!(refused.error, Error::InvalidArgument { what: "memory", .. }));

    let domain = controller.protection_domain().unwrap();
    let with = |rights| MemoryRegion::register(&domain, vec![0; 512], rights).unwrap();
    let (to_read, to_write) =
        (with(Access::REMOTE_READ), with(Access::LOCAL_WRITE | Access::REMOTE_WRITE));
    let text = namespace.read(0, &to_read).unwrap_err().to_string();
    assert!(text.contains("without Access(LOCAL_WRITE | REMOTE_WRITE)"), "{text}");
    let text = namespace.write(0, &to_write).unwrap_err().to_string();
    assert!(text.contains("without Access(REMOTE_READ)"), "{text}");
    assert_eq!(target.lock().seen, []);
    namespace.write(0, &to_read).unwrap();
    namespace.read(0, &to_write).unwrap();
    assert!(controller.is_connected());
}

#[cfg(feature = "cuda")]
mod gpu {
    use std::sync::Arc;

    use cuda_engine::CudaEngine;
    use cuda_interop::{Gpu, Visibility, cudarc::driver::CudaStream};

    use super::*;
    use crate::GpuBuffer;

    /// Bytes whose copying takes a GPU some milliseconds: far longer than a request.
    const LONG: usize = 1 << 32;

    /// The machine's first GPU; none, with a word about it, if the test is to be skipped.
    fn gpu() -> Option<Gpu> {
        let demanded = std::env::var("CUDA_REQUIRE_DEVICE").is_ok_and(|value| value == "1");
        match Gpu::open(0) {
            Ok(gpu) => Some(gpu),
            Err(error) => {
                assert!(!demanded, "{error}");
                println!("skipped: {error}");
                None
            }
        }
    }

    /// Requests that do not wait for the stream would move old bytes, and change them under its work.
    #[test]
    fn memory_of_a_gpu_is_written_and_read_after_what_its_stream_has_to_do() {
        let Some(gpu) = gpu() else {
            return;
        };
        let device = SoftDevice::new();
        let _engine = CudaEngine::install(&device);
        let target = FakeTarget::new(1024);
        target.lock().nic = Some(Nic::new(&device));
        let controller = connect(&target, options()).unwrap();
        let namespace = controller.namespace(1).unwrap();
        let stream: Arc<CudaStream> = gpu.context().new_stream().unwrap();
        let much = gpu.allocate::<u8>(&stream, LONG).unwrap();
        let mut elsewhere = gpu.allocate::<u8>(&stream, LONG).unwrap();
        for (round, length) in LENGTHS.into_iter().enumerate() {
            let seed = 2 * round as u64;
            let (out, back) = (pattern(length, seed), pattern(length, seed + 1));
            let computed = stream.clone_htod(&out).unwrap();
            let mut saved = gpu.allocate::<u8>(&stream, length).unwrap();
            let memory = gpu.allocate::<u8>(&stream, length).unwrap();
            let mut buffer = GpuBuffer::register(&controller, memory, &stream).unwrap();
            stream.synchronize().unwrap();

            stream.memcpy_dtod(&much, &mut elsewhere).unwrap();
            stream.memcpy_dtod(&computed, &mut buffer.region_mut().device_mut().unwrap()).unwrap();
            namespace.write(3, &buffer).unwrap();
            assert_eq!(target.lock().storage[3 * 512..][..length], out);

            target.lock().storage[3 * 512..][..length].copy_from_slice(&back);
            stream.memcpy_dtod(&much, &mut elsewhere).unwrap();
            let before = buffer.region().flush(Visibility::Owner).unwrap();
            stream.memcpy_dtod(&before.device(), &mut saved).unwrap();
            namespace.read(3, &buffer).unwrap();
            assert_eq!(stream.clone_dtoh(&saved).unwrap(), out);
            let arrived = buffer.region().flush(Visibility::Owner).unwrap();
            assert_eq!(stream.clone_dtoh(&arrived.device()).unwrap(), back);
            stream.synchronize().unwrap();
        }
        assert_eq!(device.violations(), Vec::<String>::new());
    }
}
