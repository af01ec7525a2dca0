//! Where a flow can lead to.

use std::{fmt, sync::Arc};

use crate::{Context, Parent, QueuePair, RawPacket, RssQueuePair};

/// What a flow needs of a queue pair.
pub(super) trait Steered: Send + Sync {
    fn raw(&self) -> *mut rdma_sys::ibv_qp;
    fn context(&self) -> &Context;
}

impl<S: Send + Sync> Steered for QueuePair<'_, RawPacket, S> {
    fn raw(&self) -> *mut rdma_sys::ibv_qp {
        self.as_raw()
    }

    fn context(&self) -> &Context {
        self.protection_domain().context()
    }
}

impl Steered for RssQueuePair<'_> {
    fn raw(&self) -> *mut rdma_sys::ibv_qp {
        self.as_raw()
    }

    fn context(&self) -> &Context {
        self.protection_domain().context()
    }
}

/// A queue pair that a [`Flow`](crate::Flow) leads to: a [`QueuePair`] of [`RawPacket`] in any state, or an [`RssQueuePair`],
/// borrowed or shared (`&Arc<…>`).
pub struct SteeringTarget<'a>(pub(super) Parent<'a, dyn Steered + 'a>);

macro_rules! targets {
    ($([$($parameter:ident)?] $target:ty;)*) => {
        $(
            impl<'a, $($parameter: Send + Sync + 'a)?> From<&'a $target> for SteeringTarget<'a> {
                fn from(target: &'a $target) -> Self {
                    Self(Parent::Borrowed(target))
                }
            }

            impl<'a, $($parameter: Send + Sync + 'a)?> From<Arc<$target>> for SteeringTarget<'a> {
                fn from(target: Arc<$target>) -> Self {
                    Self(Parent::Shared(target))
                }
            }

            impl<'a, $($parameter: Send + Sync + 'a)?> From<&Arc<$target>> for SteeringTarget<'a> {
                fn from(target: &Arc<$target>) -> Self {
                    Self::from(Arc::clone(target))
                }
            }
        )*
    };
}

targets! {
    [S] QueuePair<'a, RawPacket, S>;
    [] RssQueuePair<'a>;
}

impl fmt::Debug for SteeringTarget<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SteeringTarget").finish_non_exhaustive()
    }
}
