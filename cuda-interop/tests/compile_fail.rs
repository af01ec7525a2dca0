//! A program that forgets to wait for the stream or to flush does not compile, for the reason that its first line names,
//! and its twin in `compile_pass/`, which differs in one line, does.

use std::path::Path;

#[test]
fn programs_that_forget_an_order_do_not_compile_and_their_twins_do() {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let path = package.display();
    let dependencies = [
        format!("cuda_interop = {{ package = \"rdma4rs-cuda-interop\", path = \"{path}\" }}"),
        format!("ibverbs = {{ package = \"rdma4rs-ibverbs\", path = \"{path}/../ibverbs\" }}"),
    ];
    must_not_compile::check(package, &dependencies);
}
