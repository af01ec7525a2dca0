//! Names the library as rdma-core names its own.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libibverbs.so.1");
}
