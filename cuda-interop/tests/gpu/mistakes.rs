//! The two mistakes that do not compile with the safe interface (`tests/compile_fail`), made with the unsafe one: what is
//! held back shows them every time.

use cuda_interop::{Registration, Visibility, cudarc::driver::DevicePtr};
use ibverbs::{Completion, SendWr};

use crate::{
    order::{COUNT, WAIT, held_region, hold, with_held_writes, write_from_host},
    support::{BOTH_WAYS, End, Worker, alone, contents, counting, ends, gpus, tripled},
};

#[test]
fn sending_without_waiting_for_the_stream_sends_what_was_there_before() {
    let _alone = alone();
    for gpu in gpus(1) {
        let worker = Worker::new(&gpu);
        let (here, there, _bench) = ends(1);
        let register =
            |end: &End, buffer| Registration::new(BOTH_WAYS).register_on(&gpu, &end.domain, buffer);
        let mut from = register(&here, worker.zeros(COUNT)).unwrap();
        let to = register(&there, worker.counting(7, COUNT)).unwrap();
        let remote = to.landing_after(to.stream()).unwrap().remote().at(0).unwrap();
        worker.stream.synchronize().unwrap();
        worker.fill_late(from.device_mut().unwrap(), 1000, WAIT);
        // SAFETY: no promise is kept here; bytes of the GPU are read at the wrong time, and nothing else.
        let segment = unsafe { from.unordered() }.segment(..).unwrap();
        here.pairs[0].post_send(&mut [SendWr::write(segment, &remote).signaled()]).unwrap();
        here.wait(&mut Completion::slots::<1>());
        assert_eq!(contents(&worker, &to), vec![0; COUNT], "the kernel was not done");
        assert_eq!(contents(&worker, &from), counting(1000, COUNT), "and now it is");
    }
}

#[test]
fn reading_without_a_flush_reads_what_was_there_before() {
    let _alone = alone();
    for gpu in gpus(1) {
        let (worker, held) = (Worker::new(&gpu), with_held_writes(&gpu));
        let (here, there, bench) = ends(1);
        let buffer = worker.zeros(COUNT);
        // A second slice of the same memory, as a program has it that keeps the bare pointer.
        let address = buffer.device_ptr(&worker.stream).0;
        // SAFETY: the region below owns the memory, and the slice is leaked before it goes.
        let bare = unsafe { worker.stream.upgrade_device_ptr::<u32>(address, COUNT) };
        let region = Registration::new(BOTH_WAYS)
            .flush(cuda_interop::Flush::Always)
            .register_on(&held, &there.domain, buffer)
            .unwrap();
        let held_back = hold(&bench);
        write_from_host(&here, &there, &region);
        there.wait(&mut Completion::slots::<1>());
        assert_eq!(worker.triple(&bare.as_view()), vec![1; COUNT], "the write is not there yet");
        region.flush(Visibility::Owner).unwrap();
        assert_eq!(worker.triple(&bare.as_view()), tripled(1, COUNT), "and now it is");
        bare.leak();
        drop((held_back, region));

        // Without a hold the same region has it at once: it is the hold that the tests rest on.
        let region = held_region(&held, &worker, &there);
        write_from_host(&here, &there, &region);
        there.wait(&mut Completion::slots::<1>());
        assert_eq!(contents(&worker, &region), counting(1, COUNT));
    }
}
