//! A program that forgets to wait for the stream or to flush does not compile.

#[test]
fn programs_that_forget_an_order_do_not_compile() {
    let cases = trybuild::TestCases::new();
    cases.pass("tests/compile_pass/*.rs");
    cases.compile_fail("tests/compile_fail/*.rs");
}
