package main

import (
	"bytes"
	"image"
	"image/color"
	"image/png"
	"math"

	weir "github.com/weir-platform/weir/guest-sdk/go"
)

// Largest number of pixels of a picture: 2048 x 2048.
const pixelsMax = 1 << 22

// picture has greyscale pixels from 0 to 1, row by row; at least one pixel.
type picture struct {
	width int
	grey  []float32
}

func (p *picture) height() int { return len(p.grey) / p.width }

func (p *picture) at(x, y int) float32 { return p.grey[y*p.width+x] }

// Offset of the colour type in a PNG, and the colour types without colours.
const (
	colourTypeAt  = 25
	typeGrey      = 0
	typeGreyAlpha = 4
)

// fromPNG decodes a PNG of any colour type. Transparent pictures get a background that contrasts
// with the drawing.
func fromPNG(data []byte) (*picture, error) {
	header, err := png.DecodeConfig(bytes.NewReader(data))
	if err != nil {
		return nil, damaged(err)
	}
	if header.Width*header.Height > pixelsMax {
		return nil, tooLarge(header.Width, header.Height)
	}
	decoded, err := png.Decode(bytes.NewReader(data))
	if err != nil {
		return nil, damaged(err)
	}
	isGrey := data[colourTypeAt] == typeGrey || data[colourTypeAt] == typeGreyAlpha
	made := &picture{header.Width, make([]float32, 0, header.Width*header.Height)}
	opacity := make([]float32, 0, header.Width*header.Height)
	for y := range header.Height {
		for x := range header.Width {
			pixel := nrgba(decoded, x, y)
			grey := unit(pixel.R)
			if !isGrey {
				grey = luma(pixel)
			}
			made.grey = append(made.grey, grey)
			opacity = append(opacity, unit(pixel.A))
		}
	}
	if hasOpacity(decoded) {
		layOnPaper(made.grey, opacity)
	}
	return made, nil
}

// nrgba returns a pixel in eight bits per channel; of deeper channels, the upper eight bits.
func nrgba(of image.Image, x, y int) color.NRGBA {
	switch of := of.(type) {
	case *image.NRGBA:
		return of.NRGBAAt(x, y)
	case *image.NRGBA64:
		wide := of.NRGBA64At(x, y)
		return color.NRGBA{uint8(wide.R >> 8), uint8(wide.G >> 8), uint8(wide.B >> 8), uint8(wide.A >> 8)}
	case *image.Paletted:
		if entry, is := of.At(x, y).(color.NRGBA); is {
			return entry
		}
	}
	red, green, blue, _ := of.At(x, y).RGBA()
	return color.NRGBA{uint8(red >> 8), uint8(green >> 8), uint8(blue >> 8), math.MaxUint8}
}

func hasOpacity(of image.Image) bool {
	switch of := of.(type) {
	case *image.NRGBA, *image.NRGBA64:
		return true
	case *image.Paletted:
		for _, entry := range of.Palette {
			if _, is := entry.(color.NRGBA); is {
				return true
			}
		}
	}
	return false
}

// layOnPaper composes grey pixels on a white background if the drawing is dark, and on black if it
// is light.
func layOnPaper(grey, opacity []float32) {
	var drawn, opaque float64
	for at, alpha := range opacity {
		drawn += float64(grey[at] * alpha)
		opaque += float64(alpha)
	}
	var paper float32
	if drawn < opaque*0.5 {
		paper = 1
	}
	for at, alpha := range opacity {
		grey[at] = float32(grey[at]*alpha) + float32(paper*(1-alpha))
	}
}

func unit(value uint8) float32 { return float32(value) / 255 }

// luma is the perceived brightness of a colour (ITU-R BT.601).
func luma(pixel color.NRGBA) float32 {
	return float32(0.299*unit(pixel.R)) + float32(0.587*unit(pixel.G)) + float32(0.114*unit(pixel.B))
}

// fromRows creates a picture from rows of grey. Values up to 1 are used unchanged; if there are
// larger values (up to 16, up to 255), the largest counts as 1.
func fromRows(rows [][]float64) (*picture, error) {
	if len(rows) == 0 || len(rows[0]) == 0 {
		return nil, weir.StatusErrorf(400, "`pixels` is empty")
	}
	width := len(rows[0])
	if width*len(rows) > pixelsMax {
		return nil, tooLarge(width, len(rows))
	}
	made := &picture{width, make([]float32, 0, width*len(rows))}
	largest := float32(1)
	for row, pixels := range rows {
		if len(pixels) != width {
			return nil, weir.StatusErrorf(400, "row %d of `pixels` has %d numbers and the first row has %d", row, len(pixels), width)
		}
		for _, wide := range pixels {
			pixel := float32(wide)
			if pixel < 0 || math.IsInf(float64(pixel), 0) {
				return nil, weir.StatusErrorf(400, "row %d of `pixels` has a number that is negative or not finite", row)
			}
			largest = max(largest, pixel)
			made.grey = append(made.grey, pixel)
		}
	}
	for at := range made.grey {
		made.grey[at] /= largest
	}
	return made, nil
}
