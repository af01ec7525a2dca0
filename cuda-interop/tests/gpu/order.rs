//! The order of streams, events and flushes.

use std::{sync::Arc, time::Duration};

use cuda_interop::{Flush, Gpu, Registration, cudarc::driver::CudaSlice};
use ibverbs::{Completion, RecvWr, SendWr};

use crate::support::{
    BOTH_WAYS, Bench, End, Worker, alone, contents, counting, ends, gpus, tripled,
};

pub(crate) const COUNT: usize = 4096;
/// Far longer than a copy takes.
pub(crate) const WAIT: Duration = Duration::from_millis(300);

pub(crate) type Region = cuda_interop::CudaMemoryRegion<'static, CudaSlice<u32>>;

/// The same GPU, but flushes go to the engine that holds writes back.
pub(crate) fn with_held_writes(gpu: &Gpu) -> Gpu {
    let driver = *gpu.driver();
    // SAFETY: the engine's flush may be called by any thread and restores its context.
    let driver = unsafe { driver.with_flush(cuda_engine::flush) };
    Gpu::with_driver(gpu.context().clone(), Box::leak(Box::new(driver))).unwrap()
}

/// Holds what the device writes back until the flush above. Ends with the result.
pub(crate) fn hold(bench: &Bench) -> Held<'_> {
    bench.device.hold_inbound_writes(true);
    cuda_engine::set_flushed_device(Some(Arc::clone(&bench.device)));
    Held(bench)
}

pub(crate) struct Held<'b>(&'b Bench);

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.device.hold_inbound_writes(false);
        cuda_engine::set_flushed_device(None);
    }
}

/// A region of zeros whose writes need a flush whatever the GPU says.
pub(crate) fn held_region(gpu: &Gpu, worker: &Worker, end: &End) -> Region {
    let always = Registration::new(BOTH_WAYS).flush(Flush::Always);
    always.register_on(gpu, &end.domain, worker.zeros(COUNT)).unwrap()
}

/// Writes `1, 2, …` of the host into a region, with an immediate for the other side.
pub(crate) fn write_from_host(here: &End, there: &End, region: &Region) {
    let host =
        ibverbs::MemoryRegion::register(&here.domain, counting(1, COUNT), BOTH_WAYS).unwrap();
    there.pairs[0].post_receive(&mut [RecvWr::new(1)]).unwrap();
    let remote = region.landing_after(region.stream()).unwrap().remote().at(0).unwrap();
    let write = SendWr::write_with_imm(host.segment(..).unwrap(), &remote, 1).signaled();
    here.pairs[0].post_send(&mut [write]).unwrap();
    here.wait(&mut Completion::slots::<1>());
}

#[test]
fn waiting_for_the_producing_stream_or_event_makes_the_bytes_right() {
    let _alone = alone();
    for gpu in gpus(1) {
        let worker = Worker::new(&gpu);
        let other = gpu.context().new_stream().unwrap();
        let (here, there, _bench) = ends(1);
        let register =
            |end: &End, buffer| Registration::new(BOTH_WAYS).register_on(&gpu, &end.domain, buffer);
        let mut from = register(&here, worker.zeros(COUNT)).unwrap();
        let to = register(&there, worker.zeros(COUNT)).unwrap();
        let remote = to.landing_after(to.stream()).unwrap().remote().at(0).unwrap();
        worker.stream.synchronize().unwrap();
        for (round, by_event) in [(1, false), (2, true)] {
            worker.fill_late(from.device_mut().unwrap(), round * 1000, WAIT);
            let event = worker.stream.record_event(None).unwrap();
            assert!(from.try_ready_after(&worker.stream).unwrap().is_none());
            assert!(from.try_ready_after(&event).unwrap().is_none());
            assert!(from.try_ready_after(&other).unwrap().is_some(), "an idle stream is done");
            let ready = if by_event {
                from.ready_after(&event).unwrap()
            } else {
                from.ready_after(&worker.stream).unwrap()
            };
            let write = SendWr::write(ready.segment(..).unwrap(), &remote).signaled();
            here.pairs[0].post_send(&mut [write]).unwrap();
            here.wait(&mut Completion::slots::<1>());
            assert!(from.try_ready_after(&worker.stream).unwrap().is_some());
            assert_eq!(contents(&worker, &to), counting(round * 1000, COUNT));
        }
    }
}

#[test]
fn writes_that_are_held_back_are_seen_after_each_way_to_flush() {
    let _alone = alone();
    for gpu in gpus(1) {
        let (worker, held) = (Worker::new(&gpu), with_held_writes(&gpu));
        let (here, there, bench) = ends(1);
        let _held = hold(&bench);
        let mut slot = Completion::slots::<1>();

        let region = held_region(&held, &worker, &there);
        write_from_host(&here, &there, &region);
        let work = there.wait(&mut slot);
        let arrived = region.arrived(work).unwrap();
        assert_eq!(worker.triple(&arrived.device()), tripled(1, COUNT));
        drop(region);

        let region = held_region(&held, &worker, &there);
        write_from_host(&here, &there, &region);
        let work = there.wait(&mut slot);
        let arrived = region.arrived_on(work, &worker.stream).unwrap();
        assert_eq!(worker.triple(&arrived.device()), tripled(1, COUNT));
        drop(region);

        let mut region = held_region(&held, &worker, &there);
        write_from_host(&here, &there, &region);
        there.wait(&mut slot);
        let view = region.device_mut().unwrap();
        assert_eq!(worker.triple(&view.as_view()), tripled(1, COUNT));
        drop(region);

        let region = held_region(&held, &worker, &there);
        write_from_host(&here, &there, &region);
        there.wait(&mut slot);
        let buffer = region.into_buffer().unwrap();
        assert_eq!(worker.triple(&buffer.as_view()), tripled(1, COUNT));
    }
}
