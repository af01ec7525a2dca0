//! Waiting, sending, landing and flushing, in the order that the types ask for.

use std::sync::Arc;

use cuda_interop::{
    CudaMemoryRegion,
    cudarc::driver::{CudaSlice, CudaStream},
};
use ibverbs::{Completion, CompletionQueue, QueuePair, Rc, RemoteSegment, SendWr};

type Outcome = Result<(), Box<dyn std::error::Error>>;
type Memory<'a> = CudaMemoryRegion<'a, CudaSlice<f32>>;

fn send(
    memory: &mut Memory<'_>,
    stream: &Arc<CudaStream>,
    pair: &QueuePair<'_, Rc>,
    peer: &RemoteSegment,
) -> Outcome {
    stream.memset_zeros(&mut memory.device_mut()?)?;
    let ready = memory.ready_after(stream)?;
    pair.post_send(&mut [SendWr::write(ready.segment(..)?, peer).signaled()])?;
    pair.post_send(&mut [SendWr::read(memory.landing().segment(..)?, peer).signaled()])?;
    Ok(())
}

fn read(memory: Memory<'_>, stream: &Arc<CudaStream>, queue: &CompletionQueue<'_>) -> Outcome {
    let mut slots = Completion::slots::<1>();
    for _ in 0..2 {
        let work = queue.poll(&mut slots)?[0].outcome()?;
        let arrived = memory.arrived(work)?;
        let numbers: Vec<f32> = stream.clone_dtoh(&arrived.device())?;
        assert!(numbers.len() > 1);
    }
    drop(memory.into_buffer()?);
    Ok(())
}

fn main() {
    let _ = (send, read);
}
