//! Bytes between GPUs and hosts, checked by kernels that compute with them.

use cuda_interop::{CudaMemoryRegion, Gpu, Inbound, cudarc::driver::CudaSlice, register};
use ibverbs::{Access, Completion, RecvWr, SendWr};

use crate::support::{BOTH_WAYS, End, Worker, alone, counting, ends, gpus, tripled};

const COUNT: usize = 300_000;

type Region = CudaMemoryRegion<'static, CudaSlice<u32>>;

fn source(end: &End, worker: &Worker, first: u32) -> Region {
    register(&end.domain, worker.counting(first, COUNT), BOTH_WAYS).unwrap()
}

fn target(end: &End, worker: &Worker) -> Region {
    register(&end.domain, worker.zeros(COUNT), BOTH_WAYS).unwrap()
}

/// Every way to move bytes from one GPU to another, or within one.
fn between(from: &Gpu, to: &Gpu) {
    let (sender, receiver) = (Worker::new(from), Worker::new(to));
    let (here, there, _bench) = ends(4);
    let from = source(&here, &sender, 7);
    let mut slot = Completion::slots::<1>();

    // A write with immediate.
    let to = target(&there, &receiver);
    there.pairs[0].post_receive(&mut [RecvWr::new(1)]).unwrap();
    let ready = from.ready_after(&sender.stream).unwrap();
    let (segment, remote) = (
        ready.segment(..).unwrap(),
        to.landing_after(to.stream()).unwrap().remote().at(0).unwrap(),
    );
    let write = SendWr::write_with_imm(segment, &remote, 0xC0DE).signaled();
    here.pairs[0].post_send(&mut [write]).unwrap();
    from.arrived(here.wait(&mut slot)).expect_err("a write brings nothing to its own side");
    let work = there.wait(&mut slot);
    assert_eq!(work.immediate(), Some(0xC0DE));
    assert_eq!(receiver.triple(&to.arrived(work).unwrap().device()), tripled(7, COUNT));

    // A read.
    let to = target(&there, &receiver);
    let remote = from.ready_after(&sender.stream).unwrap().remote().at(0).unwrap();
    let read = SendWr::read(to.landing_after(to.stream()).unwrap().segment(..).unwrap(), &remote)
        .signaled();
    there.pairs[1].post_send(&mut [read]).unwrap();
    let work = there.wait(&mut slot);
    assert_eq!(receiver.triple(&to.arrived(work).unwrap().device()), tripled(7, COUNT));

    // A message into two parts, and on from there.
    let to = target(&there, &receiver);
    let (half, landing) = (COUNT * 2, to.landing_after(to.stream()).unwrap());
    let part = landing.segment(half..).unwrap();
    there.pairs[2].post_receive(&mut [RecvWr::to(2, Inbound::list(&[part]))]).unwrap();
    let event = sender.stream.record_event(None).unwrap();
    let segment = from.ready_after(&event).unwrap().segment(..half).unwrap();
    here.pairs[2].post_send(&mut [SendWr::send(segment).signaled()]).unwrap();
    here.wait(&mut slot);
    let work = there.wait(&mut slot);
    assert_eq!(work.byte_length() as usize, half);
    let arrived = to.arrived_on(work, &receiver.stream).unwrap();
    let expected = [vec![1; COUNT / 2], tripled(7, COUNT / 2)].concat();
    assert_eq!(receiver.triple(&arrived.device()), expected);
    let back = arrived.forward().segment(half..).unwrap();
    let remote = from.landing_after(from.stream()).unwrap().remote().at(half as u64).unwrap();
    there.pairs[3].post_send(&mut [SendWr::write(back, &remote).signaled()]).unwrap();
    there.wait(&mut slot);
    let returned = from.flush(cuda_interop::Visibility::Owner).unwrap();
    let expected = [tripled(7, COUNT / 2), tripled(7, COUNT / 2)].concat();
    assert_eq!(sender.triple(&returned.device()), expected);
}

#[test]
fn gpu_to_gpu_within_one() {
    let _alone = alone();
    for gpu in gpus(1) {
        between(&gpu, &gpu);
    }
}

#[test]
fn gpu_to_gpu_between_two() {
    let _alone = alone();
    if let [one, other, ..] = gpus(2).as_slice() {
        between(one, other);
        between(other, one);
    }
}

#[test]
fn gpu_to_host_and_host_to_gpu() {
    let _alone = alone();
    for gpu in gpus(1) {
        let worker = Worker::new(&gpu);
        let (here, there, _bench) = ends(1);
        let mut slot = Completion::slots::<1>();
        let device = source(&here, &worker, 70);
        let host = vec![0_u32; COUNT];
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let host = ibverbs::MemoryRegion::register(&there.domain, host, access).unwrap();

        let ready = device.ready_after(&worker.stream).unwrap();
        let write = SendWr::write(ready.segment(..).unwrap(), &host.remote().at(0).unwrap());
        here.pairs[0].post_send(&mut [write.signaled()]).unwrap();
        here.wait(&mut slot);
        let mut numbers = host.into_buffer().unwrap();
        assert_eq!(numbers, counting(70, COUNT));

        numbers.iter_mut().for_each(|number| *number += 100);
        let host = ibverbs::MemoryRegion::register(&there.domain, numbers, access).unwrap();
        let device = register(&here.domain, worker.zeros(COUNT), BOTH_WAYS).unwrap();
        here.pairs[0].post_receive(&mut [RecvWr::new(1)]).unwrap();
        let remote = device.landing_after(device.stream()).unwrap().remote().at(0).unwrap();
        let write = SendWr::write_with_imm(host.segment(..).unwrap(), &remote, 1).signaled();
        there.pairs[0].post_send(&mut [write]).unwrap();
        there.wait(&mut slot);
        let work = here.wait(&mut slot);
        let arrived = device.arrived(work).unwrap();
        assert_eq!(worker.triple(&arrived.device()), tripled(170, COUNT));
    }
}

/// One buffer, a part of it over each of several queue pairs.
fn over_several_pairs(from: &Gpu, to: &Gpu) {
    const PAIRS: usize = 8;
    let (sender, receiver) = (Worker::new(from), Worker::new(to));
    let (here, there, _bench) = ends(PAIRS);
    let (from, to) = (source(&here, &sender, 1), target(&there, &receiver));
    let ready = from.ready_after(&sender.stream).unwrap();
    let part = COUNT * 4 / PAIRS;
    for (index, pair) in there.pairs.iter().enumerate() {
        pair.post_receive(&mut [RecvWr::new(index as u64)]).unwrap();
    }
    for (index, pair) in here.pairs.iter().enumerate() {
        let range = index * part..(index + 1) * part;
        let remote =
            to.landing_after(to.stream()).unwrap().remote().at(range.start as u64).unwrap();
        let segment = ready.segment(range).unwrap();
        let number = u32::try_from(index).unwrap();
        pair.post_send(&mut [SendWr::write_with_imm(segment, &remote, number).signaled()]).unwrap();
    }
    let mut slot = Completion::slots::<1>();
    let mut seen: Vec<_> = (0..PAIRS).map(|_| there.wait(&mut slot).immediate().unwrap()).collect();
    seen.sort_unstable();
    assert_eq!(seen, counting(0, PAIRS));
    let arrived = to.flush(cuda_interop::Visibility::Owner).unwrap();
    assert_eq!(receiver.triple(&arrived.device()), tripled(1, COUNT));
}

#[test]
fn parts_over_several_queue_pairs_make_a_whole() {
    let _alone = alone();
    let gpus = gpus(1);
    for from in &gpus {
        for to in &gpus {
            over_several_pairs(from, to);
        }
    }
}
