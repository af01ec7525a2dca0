//! What must not compile does not, for the reason that its first line names, and its twin in `compile_pass/`,
//! which differs in one line, does.

use std::path::Path;

#[test]
fn what_must_not_compile_does_not_and_its_twin_does() {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let path = package.display();
    let efa = format!("efa = {{ package = \"rdma4rs-efa\", path = \"{path}\" }}");
    must_not_compile::check(package, &[efa]);
}
