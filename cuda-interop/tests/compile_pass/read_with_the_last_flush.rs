//! The access that came with one completion ends before the next is polled.

use std::sync::Arc;

use cuda_interop::{
    CudaMemoryRegion,
    cudarc::driver::{CudaSlice, CudaStream},
};
use ibverbs::{Completion, CompletionQueue};

type Outcome = Result<(), Box<dyn std::error::Error>>;
type Memory<'a> = CudaMemoryRegion<'a, CudaSlice<f32>>;

fn read(memory: &Memory<'_>, stream: &Arc<CudaStream>, queue: &CompletionQueue<'_>) -> Outcome {
    let mut slots = Completion::slots::<1>();
    let work = queue.poll(&mut slots)?[0].outcome()?;
    let arrived = memory.arrived(work)?;
    let numbers: Vec<f32> = stream.clone_dtoh(&arrived.device())?;
    assert!(numbers.len() > 1);
    Ok(())
}

fn main() {
    let _ = read;
}
