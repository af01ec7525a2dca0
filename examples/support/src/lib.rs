//! Ranks and rendezvous for the examples.
