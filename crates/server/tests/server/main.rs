//! Tests of the server over connections on this machine.

mod api;
mod client;
mod refusals;
