//! Device memory of real GPUs, registered with the soft device, whose bytes CUDA copies move.
//!
//! Without a GPU each test says that it is skipped, and with `CUDA_REQUIRE_DEVICE=1` it fails.
#![expect(unsafe_code, reason = "launches kernels, and makes the mistakes that the types prevent")]

#[cfg(test)]
mod export;
#[cfg(test)]
mod mistakes;
#[cfg(test)]
mod order;
#[cfg(test)]
mod support;
#[cfg(test)]
mod transfer;
