//! Memory that is used over and over.
//!
//! A step of training needs a few hundred buffers of some hundred kilobytes, the same ones every time. Asked of the
//! system each time, they cost more than the arithmetic done in them: every page is handed over anew, and cleared. So
//! each thread keeps those it is done with.

use std::any::Any;
use std::cell::RefCell;
use std::ops::{Deref, DerefMut};

use crate::real::Real;

/// So many bytes a thread keeps of each kind of number; what is more goes back to the system.
const MOST: usize = 64 << 20;

thread_local! {
    /// A `Vec<Vec<T>>` for every kind of number.
    static KEPT: RefCell<Vec<Box<dyn Any>>> = const { RefCell::new(Vec::new()) };
}

/// Some numbers.
#[derive(Debug)]
pub(super) struct Buffer<T: Real>(Vec<T>);

impl<T: Real> Buffer<T> {
    /// Room for so many, which hold whatever was left in them.
    pub(super) fn new(len: usize) -> Self {
        let mut numbers = with_kept(|kept| {
            let fitting = kept.iter().enumerate().filter(|(_, numbers)| numbers.capacity() >= len);
            let tightest = fitting.min_by_key(|(_, numbers)| numbers.capacity());
            tightest.map(|(place, _)| place).map(|place| kept.swap_remove(place))
        })
        .unwrap_or_else(|| vec![T::ZERO; roomy::<T>(len)]);
        numbers.resize(len, T::ZERO);
        // Whoever reads before writing is found out.
        #[cfg(test)]
        numbers.fill(T::from_f64(f64::NAN));
        Buffer(numbers)
    }
}

/// What to ask for where so many numbers are needed: those of the next step may be a few more. Large ones are not
/// kept for long, and get what they need.
fn roomy<T>(len: usize) -> usize {
    if len * size_of::<T>() < MOST / 16 { len.next_power_of_two() } else { len }
}

fn with_kept<T: Real, R>(run: impl FnOnce(&mut Vec<Vec<T>>) -> R) -> R {
    KEPT.with_borrow_mut(|kinds| {
        let place = kinds.iter().position(|kept| kept.is::<Vec<Vec<T>>>()).unwrap_or_else(|| {
            kinds.push(Box::new(Vec::<Vec<T>>::new()));
            kinds.len() - 1
        });
        run(kinds[place].downcast_mut().expect("the kind was just looked for"))
    })
}

impl<T: Real> Drop for Buffer<T> {
    fn drop(&mut self) {
        let numbers = std::mem::take(&mut self.0);
        with_kept(|kept: &mut Vec<Vec<T>>| {
            let held: usize = kept.iter().map(Vec::capacity).sum();
            if (held + numbers.capacity()) * size_of::<T>() <= MOST {
                kept.push(numbers);
            }
        });
    }
}

impl<T: Real> Deref for Buffer<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.0
    }
}

impl<T: Real> DerefMut for Buffer<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.0
    }
}

#[cfg(test)]
mod tests {
    use super::Buffer;

    #[test]
    fn a_buffer_is_used_again() {
        let first = Buffer::<f32>::new(1000);
        let address = first.as_ptr();
        drop(first);
        let other = Buffer::<f64>::new(100);
        let second = Buffer::<f32>::new(900);
        assert_eq!((second.as_ptr(), second.len(), other.len()), (address, 900, 100));
        let third = Buffer::<f32>::new(900);
        assert_ne!(third.as_ptr(), address);
    }
}
