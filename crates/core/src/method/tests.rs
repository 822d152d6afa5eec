//! Methods against their definitions, written out plainly over the vectors themselves.
