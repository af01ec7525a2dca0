//! A region has no segments to send from before a stream was waited for.

use std::sync::Arc;

use cuda_interop::{
    CudaMemoryRegion,
    cudarc::driver::{CudaSlice, CudaStream},
};
use ibverbs::{QueuePair, Rc, RemoteSegment, SendWr};

type Outcome = Result<(), Box<dyn std::error::Error>>;
type Memory<'a> = CudaMemoryRegion<'a, CudaSlice<f32>>;

fn send(
    memory: &Memory<'_>,
    stream: &Arc<CudaStream>,
    pair: &QueuePair<'_, Rc>,
    peer: &RemoteSegment,
) -> Outcome {
    let segment = memory.ready_after(stream)?.segment(..)?;
    pair.post_send(&mut [SendWr::write(segment, peer).signaled()])?;
    Ok(())
}

fn main() {
    let _ = send;
}
