/* Browsers start no worker from a folder. Where the site is opened from one, the search runs in a hidden frame instead,
   behind the same interface; material looks for the name IFrameWorker to know that. */
if (location.protocol === "file:") {
  window.IFrameWorker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.append(frame)
      this.inside = frame.contentWindow
      this.inside.postMessage = (data) => this.tell(this, data)
      this.inside.importScripts = (...urls) =>
        urls.reduce((before, next) => before.then(() => this.load(next)), Promise.resolve())
      this.ready = this.load(new URL(url, document.baseURI).href)
      this.terminate = () => frame.remove()
    }

    /* A script runs in the frame; what it says to itself is said here. */
    load(url) {
      return new Promise((resolve, reject) => {
        const script = this.inside.document.createElement("script")
        script.src = url
        script.onload = resolve
        script.onerror = () => reject(new Error(`${url} cannot be loaded`))
        this.inside.document.body.append(script)
      })
    }

    tell(target, data) {
      const event = new MessageEvent("message", { data })
      target.dispatchEvent(event)
      if (target.onmessage) target.onmessage(event)
    }

    postMessage(data) {
      this.ready.then(() => this.tell(this.inside, data))
    }
  }
  window.Worker = window.IFrameWorker
}
