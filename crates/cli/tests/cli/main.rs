//! Tests of the command line: each module runs commands as processes.

mod archives;
mod audit;
mod audit_counts;
mod audit_limits;
mod baselines;
mod dataset;
mod demo;
mod embed;
mod eval;
mod export;
mod fit;
mod fixture;
mod image_problems;
mod inspect;
mod names;
mod outputs;
mod own_noise;
mod photos;
mod refusals;
mod repair;
mod reproduce;
mod serve;
mod shell;
mod standard_input;
mod tables;
mod train;
