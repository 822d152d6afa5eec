//! Reports hold what they should.
