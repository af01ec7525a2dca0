//! The Rust blocks of the guide, each a documentation test.
//!
//! The pages are written for mdBook and for readers of plain Markdown, so that they are documentation here only while
//! it is tested: their links lead from page to page.

macro_rules! pages {
    ($($name:ident = $file:literal,)*) => {
        $(
            #[cfg(doctest)]
            #[doc = include_str!(concat!("../src/", $file))]
            pub mod $name {}
        )*

        /// The files whose blocks are tested.
        pub const PAGES: &[&str] = &[$($file),*];
    };
}

pages! {
    introduction = "introduction.md",
    concepts = "concepts.md",
    setup = "setup.md",
    tools = "tools.md",
    ibverbs = "ibverbs.md",
    efa = "efa.md",
    nvmeof = "nvmeof.md",
    cuda_interop = "cuda-interop.md",
    ownership = "ownership.md",
    testing = "testing.md",
    benchmarks = "benchmarks.md",
    errors = "errors.md",
    coming_from = "coming-from.md",
}
