//! What the states of one item, or of one class, say together; and handing a row per item and a row per class out
//! to all their states again.
//!
//! One episode: states are M x C rows of `width` numbers, item by item. Every way back adds to the gradient of the
//! states.

use super::batch::Place;
use crate::kernel::kernel;
use crate::real::Real;

#[inline(always)]
fn add<T: Real>(to: &mut [T], from: &[T]) {
    for (to, &from) in to.iter_mut().zip(from) {
        *to += from;
    }
}

#[inline(always)]
fn add_scaled<T: Real>(to: &mut [T], from: &[T], factor: T) {
    for (to, &from) in to.iter_mut().zip(from) {
        *to += factor * from;
    }
}

kernel! {
    /// `to += from`
    pub(super) fn add_all<'a, T>(to: &'a mut [T], from: &'a [T]) {
        add(to, from);
    }
}

kernel! {
    /// For every item (M x 2 width) the mean over classes, and beside it the state at the class it is filed
    /// under.
    pub(super) fn mean_and_own<'a, T>(place: &'a Place, width: usize, states: &'a [T], out: &'a mut [T]) {
        let share = T::from_f64(1.0 / place.classes as f64);
        let rows = states.chunks_exact(place.classes * width).zip(out.chunks_exact_mut(2 * width));
        for ((states, out), &given) in rows.zip(&place.given) {
            let (mean, own) = out.split_at_mut(width);
            mean.fill(T::ZERO);
            for state in states.chunks_exact(width) {
                add_scaled(mean, state, share);
            }
            own.copy_from_slice(&states[given as usize * width..][..width]);
        }
    }
}

kernel! {
    pub(super) fn mean_and_own_backward<'a, T>(
        place: &'a Place,
        width: usize,
        d_out: &'a [T],
        d_states: &'a mut [T],
    ) {
        let share = T::from_f64(1.0 / place.classes as f64);
        let rows = d_states.chunks_exact_mut(place.classes * width).zip(d_out.chunks_exact(2 * width));
        for ((d_states, d_out), &given) in rows.zip(&place.given) {
            let (d_mean, d_own) = d_out.split_at(width);
            for d_state in d_states.chunks_exact_mut(width) {
                add_scaled(d_state, d_mean, share);
            }
            add(&mut d_states[given as usize * width..][..width], d_own);
        }
    }
}

kernel! {
    /// For every item (M x 2 width) the mean over classes, and beside it the maximum. `highest` (M x width) keeps
    /// the class each maximum was found at.
    pub(super) fn mean_and_maximum<'a, T>(
        place: &'a Place,
        width: usize,
        states: &'a [T],
        out: &'a mut [T],
        highest: &'a mut [u32],
    ) {
        let share = T::from_f64(1.0 / place.classes as f64);
        let rows = states.chunks_exact(place.classes * width).zip(out.chunks_exact_mut(2 * width));
        for ((states, out), highest) in rows.zip(highest.chunks_exact_mut(width)) {
            let (mean, maximum) = out.split_at_mut(width);
            mean.fill(T::ZERO);
            maximum.copy_from_slice(&states[..width]);
            highest.fill(0);
            for (class, state) in states.chunks_exact(width).enumerate() {
                add_scaled(mean, state, share);
                for ((maximum, highest), &value) in maximum.iter_mut().zip(highest.iter_mut()).zip(state) {
                    let higher = value > *maximum;
                    *maximum = if higher { value } else { *maximum };
                    *highest = if higher { class as u32 } else { *highest };
                }
            }
        }
    }
}

kernel! {
    pub(super) fn mean_and_maximum_backward<'a, T>(
        place: &'a Place,
        width: usize,
        d_out: &'a [T],
        highest: &'a [u32],
        d_states: &'a mut [T],
    ) {
        let share = T::from_f64(1.0 / place.classes as f64);
        let rows = d_states.chunks_exact_mut(place.classes * width).zip(d_out.chunks_exact(2 * width));
        for ((d_states, d_out), highest) in rows.zip(highest.chunks_exact(width)) {
            let (d_mean, d_maximum) = d_out.split_at(width);
            for (class, d_state) in d_states.chunks_exact_mut(width).enumerate() {
                let both = d_mean.iter().zip(d_maximum).zip(highest);
                for (d_state, ((&d_mean, &d_maximum), &highest)) in d_state.iter_mut().zip(both) {
                    let there = if highest == class as u32 { d_maximum } else { T::ZERO };
                    *d_state += share * d_mean + there;
                }
            }
        }
    }
}

kernel! {
    /// For every class (C x width) the mean of the states at it of the items filed under it; zero for none.
    pub(super) fn means_of_members<'a, T>(place: &'a Place, width: usize, states: &'a [T], out: &'a mut [T]) {
        out.fill(T::ZERO);
        for (states, &given) in states.chunks_exact(place.classes * width).zip(&place.given) {
            let from = given as usize * width;
            let share = T::from_f64(1.0 / place.counts[given as usize] as f64);
            add_scaled(&mut out[from..from + width], &states[from..from + width], share);
        }
    }
}

kernel! {
    pub(super) fn means_of_members_backward<'a, T>(
        place: &'a Place,
        width: usize,
        d_out: &'a [T],
        d_states: &'a mut [T],
    ) {
        for (d_states, &given) in d_states.chunks_exact_mut(place.classes * width).zip(&place.given) {
            let from = given as usize * width;
            let share = T::from_f64(1.0 / place.counts[given as usize] as f64);
            add_scaled(&mut d_states[from..from + width], &d_out[from..from + width], share);
        }
    }
}

kernel! {
    /// Sets every state to the sum of a row of its item's (M x width) and one of its class's (C x width).
    pub(super) fn hand_out<'a, T>(
        place: &'a Place,
        width: usize,
        of_items: &'a [T],
        of_classes: &'a [T],
        states: &'a mut [T],
    ) {
        for (states, item) in states.chunks_exact_mut(place.classes * width).zip(of_items.chunks_exact(width)) {
            for (state, class) in states.chunks_exact_mut(width).zip(of_classes.chunks_exact(width)) {
                for ((state, &item), &class) in state.iter_mut().zip(item).zip(class) {
                    *state = item + class;
                }
            }
        }
    }
}

kernel! {
    /// The gradients of both rows, written.
    pub(super) fn hand_out_backward<'a, T>(
        place: &'a Place,
        width: usize,
        d_states: &'a [T],
        d_of_items: &'a mut [T],
        d_of_classes: &'a mut [T],
    ) {
        d_of_classes.fill(T::ZERO);
        let rows = d_states.chunks_exact(place.classes * width).zip(d_of_items.chunks_exact_mut(width));
        for (d_states, d_item) in rows {
            d_item.fill(T::ZERO);
            for (d_state, d_class) in d_states.chunks_exact(width).zip(d_of_classes.chunks_exact_mut(width)) {
                for ((&d_state, d_item), d_class) in d_state.iter().zip(d_item.iter_mut()).zip(d_class) {
                    *d_item += d_state;
                    *d_class += d_state;
                }
            }
        }
    }
}

kernel! {
    /// Adds a row per item (M x width) to every state of its.
    pub(super) fn add_to_states<'a, T>(place: &'a Place, width: usize, of_items: &'a [T], states: &'a mut [T]) {
        for (states, item) in states.chunks_exact_mut(place.classes * width).zip(of_items.chunks_exact(width)) {
            for state in states.chunks_exact_mut(width) {
                add(state, item);
            }
        }
    }
}

kernel! {
    /// The gradient of the rows, written.
    pub(super) fn add_to_states_backward<'a, T>(
        place: &'a Place,
        width: usize,
        d_states: &'a [T],
        d_of_items: &'a mut [T],
    ) {
        let rows = d_states.chunks_exact(place.classes * width).zip(d_of_items.chunks_exact_mut(width));
        for (d_states, d_item) in rows {
            d_item.fill(T::ZERO);
            for d_state in d_states.chunks_exact(width) {
                add(d_item, d_state);
            }
        }
    }
}
