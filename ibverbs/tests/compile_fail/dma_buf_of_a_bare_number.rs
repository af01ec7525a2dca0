//~ E0308
//! A descriptor is borrowed from whoever keeps it open.
use std::{
    fs::File,
    os::fd::{AsFd, AsRawFd},
};

use ibverbs::DmaBufPart;

pub fn part(file: &File) -> DmaBufPart<'_> {
    let number = file.as_raw_fd();
    let borrowed = file.as_fd();
    let _ = (number, borrowed);
    DmaBufPart { fd: number, offset: 0, length: 4096, address: 0 }
}

fn main() {}
