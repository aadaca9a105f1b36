//! Converts a picture of one digit, of any size, to the model's input. `model/prepare.py` does the
//! same for training.

use crate::picture::Picture;

/// Side of the model's input, in pixels.
pub const SIDE: usize = 8;

/// Ink threshold for cropping, from 0 to 1.
const INK: f32 = 0.3;
/// A picture with a smaller range of grey is blank.
const BLANK: f32 = 1.0 / 20.0;

/// The model's input: values from 0 to 1, with ink as 1.
pub type Input = [f32; SIDE * SIDE];

/// Crops the digit, scales it to [`SIDE`] x [`SIDE`] and stretches its contrast; `None` for a blank
/// picture.
///
/// The picture's border determines whether the drawing is dark on light or light on dark.
#[must_use]
pub fn prepare(picture: &Picture) -> Option<Input> {
    let ink = Ink::from_picture(picture)?;
    let (columns, rows) = ink.extent();
    let side = columns.length().max(rows.length());
    let across = columns.cells(side);
    let down = rows.cells(side);
    let mut cells = [0.0_f64; SIDE * SIDE];
    for y in down.pixels(picture.height()) {
        for x in across.pixels(picture.width()) {
            let value = f64::from(ink.at(x, y));
            for (row, height) in down.shares(y) {
                for (column, width) in across.shares(x) {
                    cells[row * SIDE + column] += value * height * width;
                }
            }
        }
    }
    let most = cells.iter().copied().fold(0.0, f64::max);
    #[expect(clippy::cast_possible_truncation, reason = "the model takes fp32")]
    Some(cells.map(|cell| (cell / most) as f32))
}

/// A picture's grey values as ink from 0 to 1.
struct Ink<'a> {
    picture: &'a Picture,
    /// `ink = offset + scale * grey`
    offset: f32,
    scale: f32,
}

impl<'a> Ink<'a> {
    fn from_picture(picture: &'a Picture) -> Option<Self> {
        let (low, high) = picture
            .grey()
            .iter()
            .fold((f32::MAX, f32::MIN), |(low, high), &grey| (low.min(grey), high.max(grey)));
        if high - low < BLANK {
            return None;
        }
        let scale = (high - low).recip();
        let ink = Self { picture, offset: -low * scale, scale };
        let turned = Self { picture, offset: high * scale, scale: -scale };
        Some(if ink.border_mean() > 0.5 { turned } else { ink })
    }

    fn at(&self, x: usize, y: usize) -> f32 {
        self.offset + self.scale * self.picture.at(x, y)
    }

    fn border_mean(&self) -> f32 {
        let width = self.picture.width();
        let height = self.picture.height();
        let mut sum = 0.0_f64;
        let mut count = 0.0_f64;
        for y in 0..height {
            let step = if y == 0 || y + 1 == height { 1 } else { (width - 1).max(1) };
            for x in (0..width).step_by(step) {
                sum += f64::from(self.at(x, y));
                count += 1.0;
            }
        }
        #[expect(clippy::cast_possible_truncation, reason = "a mean of fp32 values")]
        let mean = (sum / count) as f32;
        mean
    }

    /// The columns and the rows that contain ink. They exist: the stretch makes the largest value
    /// 1.
    fn extent(&self) -> (Extent, Extent) {
        let mut columns = Extent::NOTHING;
        let mut rows = Extent::NOTHING;
        for y in 0..self.picture.height() {
            for x in 0..self.picture.width() {
                if self.at(x, y) > INK {
                    columns.take_in(x);
                    rows.take_in(y);
                }
            }
        }
        (columns, rows)
    }
}

/// Pixels from `first` up to but not including `end`.
struct Extent {
    first: usize,
    end: usize,
}

impl Extent {
    const NOTHING: Self = Self { first: usize::MAX, end: 0 };

    fn take_in(&mut self, pixel: usize) {
        self.first = self.first.min(pixel);
        self.end = self.end.max(pixel + 1);
    }

    fn length(&self) -> usize {
        self.end.saturating_sub(self.first)
    }

    /// `SIDE` cells over `side` pixels around the middle of the extent.
    #[expect(clippy::cast_precision_loss, reason = "a picture has a few thousand pixels a side")]
    fn cells(&self, side: usize) -> Cells {
        let start = ((self.first + self.end) as f64 - side as f64) / 2.0;
        Cells { start, length: side as f64 / SIDE as f64 }
    }
}

/// One dimension of the model's input, mapped to the picture's pixels.
struct Cells {
    start: f64,
    length: f64,
}

#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a picture has a few thousand pixels a side, and negative values are clamped first"
)]
impl Cells {
    /// Pixels of a picture that at least partly overlap a cell.
    fn pixels(&self, picture: usize) -> std::ops::Range<usize> {
        let end = self.start + self.length * SIDE as f64;
        self.start.max(0.0).floor() as usize..(end.max(0.0).ceil() as usize).min(picture)
    }

    /// Cells that overlap one pixel, each with the length of the overlap.
    fn shares(&self, pixel: usize) -> impl Iterator<Item = (usize, f64)> + Clone {
        let left = pixel as f64 - self.start;
        let right = pixel as f64 + 1.0 - self.start;
        let length = self.length;
        let first = (left / length).max(0.0).floor() as usize;
        let end = ((right / length).max(0.0).ceil() as usize).min(SIDE);
        (first..end).filter_map(move |cell| {
            let covered = right.min((cell + 1) as f64 * length) - left.max(cell as f64 * length);
            (covered > 0.0).then_some((cell, covered))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn picture(rows: &[&[f32]]) -> Picture {
        Picture::from_rows(&rows.iter().map(|row| row.to_vec()).collect::<Vec<_>>()).unwrap()
    }

    #[test]
    fn square_digit_of_input_size_is_unchanged() {
        let mut rows = vec![vec![0.0; 8]; 8];
        for (i, row) in rows.iter_mut().enumerate() {
            row[i] = 1.0;
            row[7 - i] = 0.5;
        }
        let input = prepare(&Picture::from_rows(&rows).unwrap()).unwrap();
        assert_eq!(input.to_vec(), rows.concat());
    }

    #[test]
    fn dark_on_light_equals_light_on_dark() {
        let light = picture(&[&[0.0, 0.0, 0.0], &[0.0, 0.8, 0.0], &[0.0, 0.4, 0.0], &[0.0, 0.0, 0.0]]);
        let dark = picture(&[&[0.9, 0.9, 0.9], &[0.9, 0.1, 0.9], &[0.9, 0.5, 0.9], &[0.9, 0.9, 0.9]]);
        let a = prepare(&light).unwrap();
        let b = prepare(&dark).unwrap();
        assert!(a.iter().zip(&b).all(|(a, b)| (a - b).abs() < 1e-5), "{a:?} {b:?}");
    }

    #[test]
    fn blank_pictures_are_rejected() {
        assert_eq!(prepare(&picture(&[&[0.5; 5], &[0.5; 5]])), None);
        assert_eq!(prepare(&picture(&[&[1.0]])), None);
        assert_eq!(prepare(&picture(&[&[0.98, 1.0], &[1.0, 0.97]])), None);
    }

    #[test]
    fn extreme_picture_shapes_are_accepted() {
        for rows in [vec![vec![0.0, 1.0]], vec![vec![1.0], vec![0.0]], vec![vec![0.0; 700], vec![1.0; 700]]] {
            let input = prepare(&Picture::from_rows(&rows).unwrap()).unwrap();
            assert!(input.iter().all(|v| (0.0..=1.0).contains(v)) && input.contains(&1.0), "{input:?}");
        }
    }
}
