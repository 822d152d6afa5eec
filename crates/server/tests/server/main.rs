//! Tests of the server without a socket.

mod api;
mod client;
mod refusals;
