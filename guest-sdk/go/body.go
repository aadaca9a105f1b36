package weir

import "io"

// A nodeBody is the body of a request served by package weirhttp.
type nodeBody interface{ IsWeirBody() }

// A nodeAnswer is a response served by package weirhttp.
type nodeAnswer interface{ AnswerWithTensor(give func() error) error }

// TakeBodyAsTensor makes a tensor of a request body, such as the Body of an http.Request. One
// dimension of the shape may be Any.
//
// If package weirhttp serves the request, the body stays on the node and does not enter guest
// memory; it must not have been read before. Any other reader is read to its end.
func TakeBodyAsTensor(body io.Reader, elements Type, shape ...int) (*Tensor, error) {
	sizes, err := sizesOf(shape, true)
	if err != nil {
		return nil, err
	}
	if _, is := body.(nodeBody); is {
		return tensor(takeBody(elements, sizes))
	}
	data, err := io.ReadAll(body)
	if err != nil {
		return nil, err
	}
	return tensor(newTensor(elements, opened(elements, sizes, len(data)), data))
}

// ReplyWithTensor writes the bytes of a tensor to a response, such as an http.ResponseWriter.
//
// If package weirhttp serves the request, the bytes stay on the node and do not enter guest memory.
// The function must not write to the response before; it may set status and headers before or
// after. To any other writer, ReplyWithTensor writes the bytes.
func ReplyWithTensor(answer io.Writer, t *Tensor) error {
	if on, is := answer.(nodeAnswer); is {
		return on.AnswerWithTensor(func() error { return reply(t.on) })
	}
	data, err := t.Bytes()
	if err != nil {
		return err
	}
	_, err = answer.Write(data)
	return err
}

// opened returns the shape with its Any dimension inferred from size, the length of the body.
func opened(elements Type, sizes []uint32, size int) []uint32 {
	open, rest := -1, elements.Size()
	for at, wanted := range sizes {
		if wanted != 1<<32-1 {
			rest *= int(wanted)
		} else if open < 0 {
			open = at
		} else {
			return sizes
		}
	}
	if open < 0 || rest <= 0 || size%rest != 0 {
		return sizes
	}
	made := append([]uint32{}, sizes...)
	made[open] = uint32(size / rest)
	return made
}
