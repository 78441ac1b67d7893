"""HTTP server with the OpenAI API, the Ollama API and a web page.

run.py             socket, uvicorn, signals
app.py             ASGI application: middleware and routes
server.py          settings, access control, error formats
validation.py      validation of JSON bodies

openai.py, completions.py, responses.py, anthropic.py, ollama.py, embeddings.py, tokenization.py,
management.py: APIs messages.py        messages and tools of requests; from a conversation to a
generation settings.py        sampling and the other fields that the APIs share generation.py
the engine's requests of an HTTP request, and their results replies.py         complete replies
streaming.py       complete and streamed responses

catalog.py         loads and unloads models
loading.py         engines for loaded models; models in the local cache
models.py          a loaded model: tokenization, grammars
engine_thread.py   base of the engines: a thread with a queue of requests
engine.py          continuous batching of requests in one thread per model
encoder_engine.py  batching of texts in one thread per text encoder
workers.py         thread pools for tokenization and schemas

page/              web page
"""
