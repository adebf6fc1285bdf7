// A throw ends the instance: the component's C++ library is made without exceptions.
#include <stdlib.h>

void *__cxa_allocate_exception(size_t size) { (void)size; abort(); }
void __cxa_free_exception(void *thrown) { (void)thrown; abort(); }
void __cxa_throw(void *thrown, void *type, void (*destroy)(void *)) { (void)thrown, (void)type, (void)destroy; abort(); }
void *__cxa_begin_catch(void *thrown) { (void)thrown; abort(); }
void __cxa_end_catch(void) { abort(); }
void __cxa_rethrow(void) { abort(); }
