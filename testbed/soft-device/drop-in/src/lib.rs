//! The soft device as a drop-in `libibverbs.so.1`.
//!
//! Copy or link the `libibverbs.so` that this package builds to `libibverbs.so.1`, put its folder into
//! `LD_LIBRARY_PATH`, and any program that was built for rdma-core finds one device, `soft0`.
//!
//! ```text
//! cargo build --release -p soft-device-drop-in
//! mkdir drop-in && cp target/release/libibverbs.so drop-in/libibverbs.so.1
//! LD_LIBRARY_PATH=drop-in ibv_devices
//! ```
#![expect(unsafe_code, reason = "exports the C symbols of libibverbs")]

use std::{
    ffi::{c_char, c_int, c_uint, c_void},
    sync::LazyLock,
};

use rdma_sys as c;
use soft_device::{SoftDevice, library};

/// The device that programs find.
static DEVICE: LazyLock<SoftDevice> = LazyLock::new(SoftDevice::new);

/// Exports each function of the list under its C name.
macro_rules! export {
    ($($module:ident::$name:ident($($parameter:ident: $type:ty),*) -> $result:ty;)*) => {
        $(
            /// See the manual page of this name.
            ///
            /// # Safety
            ///
            /// The contract is the one of the manual page.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name($($parameter: $type),*) -> $result {
                LazyLock::force(&DEVICE);
                let Some(function) = library().verbs().$name else { std::process::abort() };
                // SAFETY: the caller keeps the contract, which is the same for both.
                unsafe { function($($parameter),*) }
            }
        )*
    };
}

soft_device::for_each_symbol!(export);
