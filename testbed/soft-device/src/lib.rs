//! A verbs device inside the process.
