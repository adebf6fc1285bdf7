// Conversion by `iconv` that fails at a character that the target encoding does not have. The C library of a component
// writes an asterisk in its place, as POSIX permits, and libxml2 could not write a reference to the character.
#include <errno.h>
#include <iconv.h>
#include <string.h>

static inline size_t exact_iconv(iconv_t to, char **in, size_t *in_left, char **out, size_t *out_left) {
    char *in_begun = *in, *out_begun = *out;
    size_t in_size = *in_left, out_size = *out_left;
    size_t replaced = iconv(to, in, in_left, out, out_left);
    if (replaced == 0 || replaced == (size_t)-1) return replaced;
    // The text is UTF-8, which every character can be converted to. It is converted again, one character at a time.
    *in = in_begun, *out = out_begun, *in_left = in_size, *out_left = out_size;
    while (*in_left > 0) {
        unsigned char first = (unsigned char)**in;
        size_t size = first < 0x80 ? 1 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
        if (size > *in_left) return errno = EINVAL, (size_t)-1;
        char *next = *in, *written = *out;
        size_t left = size, room = *out_left;
        replaced = iconv(to, &next, &left, &written, &room);
        if (replaced == (size_t)-1) return replaced;
        if (replaced != 0) return errno = EILSEQ, (size_t)-1;
        *in = next, *in_left -= size, *out = written, *out_left = room;
    }
    return 0;
}

#define iconv(to, in, in_left, out, out_left) exact_iconv(to, (char **)(in), in_left, out, out_left)
