package main

import "math"

const (
	// Side of the model's input, in pixels.
	side = 8
	// Ink threshold for cropping, from 0 to 1.
	inkLeast = 0.3
	// A picture with a smaller range of grey is blank.
	blank = 1.0 / 20
)

// prepare crops the digit, scales it to side x side and stretches its contrast: values from 0 to 1,
// with ink as 1. It reports whether the picture has a digit.
//
// The picture's border determines whether the drawing is dark on light or light on dark.
func prepare(of *picture) ([]float32, bool) {
	drawn, is := inkOf(of)
	if !is {
		return nil, false
	}
	columns, rows := drawn.extent()
	length := max(columns.length(), rows.length())
	across, down := columns.cells(length), rows.cells(length)
	var sums [side * side]float64
	for y := range of.height() {
		for x := range of.width {
			value := float64(drawn.at(x, y))
			down.each(y, func(row int, height float64) {
				across.each(x, func(column int, width float64) {
					sums[row*side+column] += value * height * width
				})
			})
		}
	}
	most := 0.0
	for _, sum := range sums {
		most = max(most, sum)
	}
	input := make([]float32, 0, len(sums))
	for _, sum := range sums {
		input = append(input, float32(sum/most))
	}
	return input, true
}

// ink is a picture's grey as ink from 0 to 1: offset + scale * grey.
type ink struct {
	of            *picture
	offset, scale float32
}

func inkOf(of *picture) (ink, bool) {
	low, high := float32(math.MaxFloat32), float32(-math.MaxFloat32)
	for _, grey := range of.grey {
		low, high = min(low, grey), max(high, grey)
	}
	if high-low < blank {
		return ink{}, false
	}
	scale := 1 / (high - low)
	if drawn := (ink{of, -low * scale, scale}); drawn.borderMean() <= 0.5 {
		return drawn, true
	}
	return ink{of, high * scale, -scale}, true
}

func (i ink) at(x, y int) float32 { return i.offset + float32(i.scale*i.of.at(x, y)) }

func (i ink) borderMean() float32 {
	width, height := i.of.width, i.of.height()
	var sum, count float64
	for y := range height {
		step := max(width-1, 1)
		if y == 0 || y == height-1 {
			step = 1
		}
		for x := 0; x < width; x += step {
			sum += float64(i.at(x, y))
			count++
		}
	}
	return float32(sum / count)
}

// extent returns the columns and the rows that contain ink. They exist: the stretch makes the
// largest value 1.
func (i ink) extent() (columns, rows span) {
	columns, rows = span{math.MaxInt, 0}, span{math.MaxInt, 0}
	for y := range i.of.height() {
		for x := range i.of.width {
			if i.at(x, y) > inkLeast {
				columns.takeIn(x)
				rows.takeIn(y)
			}
		}
	}
	return columns, rows
}

// span is the pixels from first up to but not including end.
type span struct{ first, end int }

func (s *span) takeIn(pixel int) { s.first, s.end = min(s.first, pixel), max(s.end, pixel+1) }

func (s span) length() int { return max(s.end-s.first, 0) }

// cells returns side cells over length pixels around the middle of the span.
func (s span) cells(length int) cells {
	return cells{(float64(s.first+s.end) - float64(length)) / 2, float64(length) / side}
}

// cells is one dimension of the model's input, mapped to the picture's pixels.
type cells struct{ start, length float64 }

// each yields the cells that overlap one pixel, with the length of the overlap.
func (c cells) each(pixel int, take func(cell int, covered float64)) {
	left, right := float64(pixel)-c.start, float64(pixel)+1-c.start
	first := int(math.Floor(max(left/c.length, 0)))
	end := min(int(math.Ceil(max(right/c.length, 0))), side)
	for cell := first; cell < end; cell++ {
		covered := min(right, float64(cell+1)*c.length) - max(left, float64(cell)*c.length)
		if covered > 0 {
			take(cell, covered)
		}
	}
}
