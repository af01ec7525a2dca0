//! A region gives nothing to read before a flush.

use std::sync::Arc;

use cuda_interop::{
    CudaMemoryRegion, Visibility,
    cudarc::driver::{CudaSlice, CudaStream},
};

type Outcome = Result<(), Box<dyn std::error::Error>>;
type Memory<'a> = CudaMemoryRegion<'a, CudaSlice<f32>>;

fn read(memory: &Memory<'_>, stream: &Arc<CudaStream>) -> Outcome {
    let _ = Visibility::Owner;
    let numbers: Vec<f32> = stream.clone_dtoh(&memory.flush(Visibility::Owner)?.device())?;
    assert!(numbers.len() > 1);
    Ok(())
}

fn main() {
    let _ = read;
}
