package weir

import (
	"runtime"
	"strings"

	abiimage "github.com/weir-platform/weir/guest-sdk/go/internal/abi/weir_inference_image"
	abimodels "github.com/weir-platform/weir/guest-sdk/go/internal/abi/weir_inference_models"
	abiobjects "github.com/weir-platform/weir/guest-sdk/go/internal/abi/weir_inference_objects"
	abirequest "github.com/weir-platform/weir/guest-sdk/go/internal/abi/weir_inference_request"
	abitensors "github.com/weir-platform/weir/guest-sdk/go/internal/abi/weir_inference_tensors"
	"github.com/weir-platform/weir/guest-sdk/go/internal/wit"
)

type componentTensor struct{ *abitensors.Tensor }

// TensorOfHandle returns the tensor of a handle of the node, and takes ownership of the handle. For
// functions that implement their own exports. Exists only in components.
func TensorOfHandle(handle int32) *Tensor {
	return &Tensor{componentTensor{abitensors.TensorFromOwnHandle(handle)}}
}

// TakeHandle transfers the ownership of the handle to the caller. The tensor must not be used
// afterwards. Exists only in components.
func (t *Tensor) TakeHandle() int32 { return t.on.(componentTensor).Tensor.TakeHandle() }

func newTensor(elements Type, sizes []uint32, data []byte) (made nodeTensor, err error) {
	wit.Ask(wit.Text, func() { made, err = lent(abitensors.TensorFromBytes(uint8(elements), sizes, data)) })
	return made, err
}

func takeBody(elements Type, sizes []uint32) (made nodeTensor, err error) {
	wit.Ask(wit.Text, func() { made, err = lent(abirequest.TakeBodyAsTensor(uint8(elements), sizes)) })
	return made, err
}

func reply(with nodeTensor) (err error) {
	wit.Ask(wit.Text, func() {
		if done := abirequest.ReplyWithTensor(with.(componentTensor).Tensor); done.IsErr() {
			err = refused(done.Err())
		}
	})
	return err
}

func lent(made wit.Result[*abitensors.Tensor, abitensors.Error]) (nodeTensor, error) {
	if made.IsErr() {
		return nil, refused(made.Err())
	}
	return componentTensor{made.Ok()}, nil
}

func (t componentTensor) elementType() Type { return Type(t.ElementType()) }
func (t componentTensor) size() int64       { return int64(t.ByteLength()) }
func (t componentTensor) drop()             { t.Drop() }

func (t componentTensor) shape() (sizes []uint32) {
	wit.Ask(wit.Text, func() { sizes = t.Shape() })
	return sizes
}

func (t componentTensor) read(offset, size int64) (data []byte, err error) {
	wit.Ask(wit.Text+int(size), func() {
		got := t.Read(uint64(offset), uint64(size))
		if got.IsErr() {
			err = refused(got.Err())
		} else {
			data = got.Ok()
		}
	})
	return data, err
}

func getObject(name string) (found nodeTensor, err error) {
	wit.Ask(wit.Text, func() { found, err = lent(abiobjects.Get(name)) })
	return found, err
}

// A ttlMs of 0 selects the node's default lifetime.
func putObject(name string, value nodeTensor, ttlMs uint64) (err error) {
	var ttl wit.Option[uint64]
	if ttlMs > 0 {
		ttl = wit.Some(ttlMs)
	}
	wit.Ask(wit.Text, func() {
		if put := abiobjects.Put(name, value.(componentTensor).Tensor, ttl); put.IsErr() {
			err = refused(put.Err())
		}
	})
	return err
}

func deleteObject(name string) (err error) {
	wit.Ask(wit.Text, func() {
		if deleted := abiobjects.Delete(name); deleted.IsErr() {
			err = refused(deleted.Err())
		}
	})
	return err
}

// Cases of the node's filters, whose zero is Nearest.
var filters = [...]abiimage.Filter{
	Bilinear: abiimage.FilterBilinear,
	Bicubic:  abiimage.FilterBicubic,
	Lanczos:  abiimage.FilterLanczos,
	Nearest:  abiimage.FilterNearest,
}

func decodeImage(encoded nodeTensor, options ImageOptions) (made nodeTensor, err error) {
	wit.Ask(wit.Text, func() {
		made, err = lent(abiimage.Decode(encoded.(componentTensor).Tensor, wit.Some(options.lowered())))
	})
	return made, err
}

func inspectImage(encoded nodeTensor) (info ImageInfo, err error) {
	wit.Ask(wit.Text, func() {
		got := abiimage.Inspect(encoded.(componentTensor).Tensor)
		if got.IsErr() {
			err = refused(got.Err())
			return
		}
		found := got.Ok()
		formats := [...]string{abiimage.FormatJpeg: "jpeg", abiimage.FormatPng: "png", abiimage.FormatWebp: "webp"}
		info = ImageInfo{formats[found.Format], Size{int(found.Width), int(found.Height)}}
	})
	return info, err
}

func (o ImageOptions) lowered() abiimage.Options {
	lowered := abiimage.Options{
		Channels:          abiimage.Channels(o.Channels),
		Layout:            abiimage.Layout(o.Layout),
		ElementType:       uint8(o.Type),
		Mean:              o.Mean,
		Std:               o.Std,
		IgnoreOrientation: o.IgnoreOrientation,
	}
	if o.Resize != (Size{}) {
		lowered.Resize = wit.Some(abiimage.Resize{To: o.Resize.lowered(), Fit: abiimage.Fit(o.Fit), Filter: filters[o.Filter]})
	}
	if o.Crop != (Size{}) {
		lowered.Crop = wit.Some(o.Crop.lowered())
	}
	if o.Scale != 0 {
		lowered.Scale = wit.Some(o.Scale)
	}
	if o.Background != nil {
		// The components have 16 bits.
		red, green, blue, _ := o.Background.RGBA()
		lowered.Background = wit.Some(abiimage.Colour{Red: uint8(red >> 8), Green: uint8(green >> 8), Blue: uint8(blue >> 8)})
	}
	return lowered
}

func (s Size) lowered() abiimage.Size {
	return abiimage.Size{Width: uint32(s.Width), Height: uint32(s.Height)}
}

type componentModel struct{ *abimodels.Model }

func openModel(name string) (found nodeModel, err error) {
	wit.Ask(wit.Text, func() {
		opened := abimodels.ModelOpen(name)
		if opened.IsErr() {
			err = refused(opened.Err())
		} else {
			found = componentModel{opened.Ok()}
		}
	})
	return found, err
}

func (m componentModel) drop() { m.Drop() }

func (m componentModel) describe() (description Description) {
	wit.Ask(wit.Text, func() {
		got := m.Describe()
		description = Description{strings.Clone(got.Name), strings.Clone(got.Version), ports(got.Inputs), ports(got.Outputs)}
	})
	return description
}

func ports(all []abimodels.Port) []Port {
	made := make([]Port, len(all))
	for at, port := range all {
		shape := make([]int, len(port.Shape))
		for dimension, size := range port.Shape {
			shape[dimension] = Any
			if size.IsSome() {
				shape[dimension] = int(size.Some())
			}
		}
		made[at] = Port{strings.Clone(port.Name), Type(port.ElementType), shape}
	}
	return made
}

func (m componentModel) infer(inputs Tensors, chosen options) (outputs Tensors, err error) {
	wit.Ask(wit.Text, func() { outputs, err = received(m.Infer(listed(inputs), chosen.lowered())) })
	runtime.KeepAlive(inputs)
	return outputs, err
}

func (m componentModel) submit(inputs Tensors, chosen options) (started nodePending, err error) {
	wit.Ask(wit.Text, func() {
		got := m.Submit(listed(inputs), chosen.lowered())
		if got.IsErr() {
			err = refused(got.Err())
		} else {
			started = componentPending{got.Ok()}
		}
	})
	runtime.KeepAlive(inputs)
	return started, err
}

type componentPending struct{ *abimodels.Pending }

func (p componentPending) cancel() { p.Cancel() }
func (p componentPending) drop()   { p.Drop() }

func (p componentPending) wait() (outputs Tensors, err error) {
	wit.Ask(wit.Text, func() { outputs, err = received(p.Wait()) })
	return outputs, err
}

type named = wit.Tuple2[string, *abitensors.Tensor]

func listed(tensors Tensors) []named {
	list := make([]named, 0, len(tensors))
	for _, name := range tensors.names() {
		list = append(list, named{F0: name, F1: tensors[name].on.(componentTensor).Tensor})
	}
	return list
}

func received(got wit.Result[[]named, abitensors.Error]) (Tensors, error) {
	if got.IsErr() {
		return nil, refused(got.Err())
	}
	tensors := make(Tensors, len(got.Ok()))
	for _, output := range got.Ok() {
		tensors[strings.Clone(output.F0)] = &Tensor{componentTensor{output.F1}}
	}
	return tensors, nil
}

func (o options) lowered() wit.Option[abimodels.Options] {
	var lowered abimodels.Options
	if o.outputs != nil {
		lowered.Outputs = wit.Some(o.outputs)
	}
	if o.deadlineMs != nil {
		lowered.DeadlineMs = wit.Some(*o.deadlineMs)
	}
	if o.priority != nil {
		lowered.Priority = wit.Some(*o.priority)
	}
	return wit.Some(lowered)
}

func refused(refusal abitensors.Error) error {
	var text string
	switch refusal.Tag() {
	case abitensors.ErrorInvalidArgument:
		text = refusal.InvalidArgument()
	case abitensors.ErrorNotFound:
		text = refusal.NotFound()
	case abitensors.ErrorNotGranted:
		text = refusal.NotGranted()
	case abitensors.ErrorResourceExhausted:
		text = refusal.ResourceExhausted()
	case abitensors.ErrorDeadlineExceeded:
		text = "the deadline passed"
	case abitensors.ErrorCancelled:
		text = "the run was cancelled"
	case abitensors.ErrorUnavailable:
		text = refusal.Unavailable()
	default:
		text = refusal.Internal()
	}
	return Errorf(Code(refusal.Tag()), "%s", text)
}
