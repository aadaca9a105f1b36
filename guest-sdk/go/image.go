package weir

import "image/color"

// A Fit is the treatment of the aspect ratio by a resize.
type Fit uint8

const (
	// Fill: exactly the size; the aspect ratio changes.
	Fill Fit = iota
	// Cover: the smallest image that covers the size, then the centre of it.
	Cover
	// Contain: the largest image within the size, centred, with margins.
	Contain
	// Inside: the largest image within the size, without margins.
	Inside
	// Outside: the smallest image that covers the size, uncropped.
	Outside
)

// A Filter computes the pixels of a resized image. All but [Nearest] average when they shrink an
// image, and give the pixels of Pillow.
type Filter uint8

// Filters.
const (
	Bilinear Filter = iota
	Bicubic
	Lanczos
	Nearest
)

// Channels are the channels of a decoded image.
type Channels uint8

// Channels of a decoded image.
const (
	RGB Channels = iota
	BGR
	Grey
)

// A Layout is the order of the dimensions of a decoded image.
type Layout uint8

const (
	// NCHW: batch, channel, row, column.
	NCHW Layout = iota
	// NHWC: batch, row, column, channel.
	NHWC
)

// A Size is a size in pixels.
type Size struct{ Width, Height int }

// ImageOptions are the options of a decoding. The zero value keeps the size of the image, and makes
// fp32 numbers from 0 to 1. The node takes the steps in this order: EXIF orientation, background,
// channels, resize, crop, normalisation.
type ImageOptions struct {
	// Resize is the size of the image; zero keeps its own.
	Resize Size
	// Fit is the treatment of the aspect ratio by the resize.
	Fit Fit
	// Filter is the filter of the resize.
	Filter Filter
	// Crop is the size of the centre to keep of the resized image; zero keeps all of it.
	Crop Size
	// Channels are the channels of the tensor.
	Channels Channels
	// Layout is the order of the tensor's dimensions.
	Layout Layout
	// Type is FP32 (also if zero), FP16 or BF16 for normalised pixels, or Uint8 for pixels as they
	// are. A normalised pixel is (pixel*Scale - Mean) / Std.
	Type Type
	// Scale is the factor of each pixel, from 0 to 255; zero is 1/255.
	Scale float32
	// Mean and Std have one number per channel, one for all, or none for 0 and 1.
	Mean, Std []float32
	// Background is the colour behind transparent pixels and of the margins of Contain. If it is
	// nil, transparency is ignored and margins are black.
	Background color.Color
	// IgnoreOrientation keeps the pixels as stored, whatever the EXIF orientation.
	IgnoreOrientation bool
}

// ImageInfo is the format and size of an encoded image.
type ImageInfo struct {
	// Format is jpeg, png or webp.
	Format string
	// Size is the size of the image as it is displayed, with its EXIF orientation applied.
	Size
}

// DecodeImage decodes a JPEG, PNG or WebP image on the node into a tensor of four dimensions, which
// a model can take as it is. encoded holds the bytes of the image as Uint8:
// TakeBodyAsTensor(r.Body, Uint8, Any) makes such a tensor of a body, without a copy through the
// function.
//
// It fails with [InvalidArgument] for an image that is damaged or exceeds the node's limits, and
// with [ResourceExhausted] above the function's limit of tensor bytes.
func DecodeImage(encoded *Tensor, options ImageOptions) (*Tensor, error) {
	for _, size := range []Size{options.Resize, options.Crop} {
		if size != (Size{}) && (size.Width <= 0 || size.Height <= 0 || uint64(max(size.Width, size.Height)) > 1<<31) {
			return nil, Errorf(InvalidArgument, "%d x %d pixels are no size of an image", size.Width, size.Height)
		}
	}
	if options.Fit > Outside || options.Filter > Nearest || options.Channels > Grey || options.Layout > NHWC {
		return nil, Errorf(InvalidArgument, "the options of the image have an unknown fit, filter, channels or layout")
	}
	if options.Type == 0 {
		options.Type = FP32
	}
	return tensor(decodeImage(encoded.on, options))
}

// InspectImage reads the header of an encoded image, without decoding it. It fails with
// [InvalidArgument] for anything but a JPEG, PNG or WebP image.
func InspectImage(encoded *Tensor) (ImageInfo, error) { return inspectImage(encoded.on) }
